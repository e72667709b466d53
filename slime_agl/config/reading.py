"""Check a mapping against nested dataclasses, key by key."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from slime_agl.errors import ConfigError, closest


def read_mapping(cls: type, mapping: Any, path: str) -> Any:
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{path} must be a mapping of keys to values, got {_kind(mapping)}")
    hints = typing.get_type_hints(cls)
    known = {key_of(item): item for item in dataclasses.fields(cls)}
    values = {}
    for name, value in mapping.items():
        if name not in known:
            raise ConfigError(f"{path}.{name} is not a key.{closest(str(name), known)} Known keys: {', '.join(known)}")
        item, where = known[name], f"{path}.{name}"
        if dataclasses.is_dataclass(item.default):
            values[item.name] = item.default if value is None else read_mapping(type(item.default), value, where)
        elif item.metadata["mapping"] and isinstance(value, Mapping):
            values[item.name] = read_mapping(item.metadata["mapping"], value, where)
        else:
            values[item.name] = _check(value, hints[item.name], where)
    return cls(**values)


def key_of(item: dataclasses.Field[Any]) -> str:
    return item.name.removesuffix("_")


def _check(value: Any, hint: Any, where: str) -> Any:
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        if value not in choices:
            hintful = closest(str(value), choices)
            raise ConfigError(f"{where} is {value!r}, it must be one of {', '.join(choices)}.{hintful}")
        return value
    allowed = choices if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union else (hint,)
    for option in allowed:
        if _is_of(value, option):
            return _converted(value, option)
    wanted = " or ".join(_name(option) for option in allowed)
    raise ConfigError(f"{where} is {value!r} ({_kind(value)}), it must be {wanted}")


def _is_of(value: Any, option: Any) -> bool:
    if option is type(None):
        return value is None
    origin = typing.get_origin(option)
    if origin is Literal:
        return value in typing.get_args(option)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if origin is not None:
        return isinstance(value, Mapping) and all(isinstance(x, str) for pair in value.items() for x in pair)
    if option in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if option is float else option)


def _converted(value: Any, option: Any) -> Any:
    if option is float:
        return float(value)
    return tuple(value) if typing.get_origin(option) is tuple else value


def _name(option: Any) -> str:
    origin = typing.get_origin(option)
    if origin is Literal:
        return " or ".join(typing.get_args(option))
    if origin is tuple:
        return "a list of strings"
    if origin is not None:
        return "a mapping of strings to strings"
    names = {type(None): "null", str: "a string", bool: "true or false", int: "a whole number", float: "a number"}
    return names.get(option, "a mapping" if dataclasses.is_dataclass(option) else str(option))


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
