"""Check plain data of unknown origin before it becomes a value.

Every function raises ValueError with the found and the expected type; callers add the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeVar

T = TypeVar("T")
Kinds = tuple[type, ...]
TEXT = (str,)
INTEGER = (int,)
INTEGER_OR_NONE = (int, NoneType)
NUMBER = (int, float)
FLAT = (int, str, NoneType)
FLAG = (bool,)
# JSON writers and views recurse up to about 250 levels.
DEEPEST = 200


def fields_of(data: object, kinds: Mapping[str, Kinds]) -> dict[str, Any]:
    """Read the named fields of an object, each of an allowed type."""
    known = mapping(data, "entry")
    return {name: one_of(known[name], name, allowed) for name, allowed in kinds.items()}


def one_of(value: object, name: str, kinds: tuple[type[T], ...]) -> T:
    """The value, if it is of one of the types."""
    # type() rather than isinstance(): JSON's true must not pass as 1.
    if type(value) not in kinds:
        wanted = " or ".join("null" if kind is NoneType else kind.__name__ for kind in kinds)
        raise ValueError(f"{name} is {kind_of(value)}, {wanted} was expected")
    return value  # pyright: ignore[reportReturnType]  # not narrowed by type()


def text(value: object, name: str) -> str:
    return one_of(value, name, TEXT)


def listed(value: object, name: str) -> list[object]:
    return one_of(value, name, (list,))


def mapping(value: object, name: str) -> dict[str, object]:
    return one_of(value, name, (dict,))


def texts(value: object, name: str) -> tuple[str, ...]:
    return tuple(text(one, name) for one in listed(value, name))


def numbers(value: object, name: str) -> dict[str, float | None]:
    """A mapping to numbers; NaN was written as null."""
    return {key: one_of(one, f"{name} {key!r}", (int, float, NoneType)) for key, one in mapping(value, name).items()}


def shallow(value: T, name: str) -> T:
    """Any JSON value shallow enough to be written again."""
    level: list[object] = [value]
    depth = 0
    while level:
        if depth > DEEPEST:
            raise ValueError(f"{name} is nested more than {DEEPEST} levels deep")
        inner: list[object] = []
        for one in level:
            if type(one) is dict:
                inner += one.values()
            elif type(one) is list:
                inner += one
        level, depth = inner, depth + 1
    return value


def kind_of(value: object) -> str:
    return "null" if value is None else type(value).__name__
