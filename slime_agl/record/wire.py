"""Check plain data of unknown origin before it becomes a value.

Every function raises ValueError with the found and the expected type; callers add the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Kinds = tuple[type, ...]
NOTHING = type(None)
TEXT: Kinds = (str,)
INTEGER: Kinds = (int,)
INTEGER_OR_NONE: Kinds = (int, NOTHING)
NUMBER: Kinds = (int, float)
FLAT: Kinds = (int, str, NOTHING)
FLAG: Kinds = (bool,)
# JSON writers and views recurse up to about 250 levels.
DEEPEST = 200


def fields_of(data: Any, kinds: Mapping[str, Kinds]) -> dict[str, Any]:
    """Read the named fields of an object, each of an allowed type."""
    known = mapping(data, "entry")
    return {name: one_of(known[name], name, allowed) for name, allowed in kinds.items()}


def one_of(value: Any, name: str, kinds: Kinds) -> Any:
    # type() rather than isinstance(): JSON's true must not pass as 1.
    if type(value) not in kinds:
        wanted = " or ".join("null" if kind is NOTHING else kind.__name__ for kind in kinds)
        raise ValueError(f"{name} is {kind_of(value)}, {wanted} was expected")
    return value


def text(value: Any, name: str) -> str:
    return one_of(value, name, TEXT)


def listed(value: Any, name: str) -> list[Any]:
    return one_of(value, name, (list,))


def mapping(value: Any, name: str) -> dict[str, Any]:
    return one_of(value, name, (dict,))


def texts(value: Any, name: str) -> tuple[str, ...]:
    return tuple(text(one, name) for one in listed(value, name))


def numbers(value: Any, name: str) -> dict[str, float | None]:
    """A mapping to numbers; NaN was written as null."""
    return {key: one_of(one, f"{name} {key!r}", (int, float, NOTHING)) for key, one in mapping(value, name).items()}


def shallow(value: Any, name: str) -> Any:
    """Any JSON value shallow enough to be written again."""
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(f"{name} is nested more than {DEEPEST} levels deep")
        inner: list[Any] = []
        for one in level:
            if type(one) is dict:
                inner += one.values()
            elif type(one) is list:
                inner += one
        level, depth = inner, depth + 1
    return value


def kind_of(value: Any) -> str:
    return "null" if value is None else type(value).__name__
