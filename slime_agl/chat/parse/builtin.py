"""Parse tool calls between `<tool_call>` and `</tool_call>`, without sglang.

Two syntaxes: a JSON object (Hermes, Qwen) and `<function=name><parameter=key>value` (Qwen3-Coder), the second also
without the outer tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Never

from msgspec import Struct

from slime_agl.errors import SlimeAglError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION = "<function="
_START = re.compile(r"<tool_call>\s*|(?=<function=)")
_END = re.compile(r"\s*</tool_call>")
_FUNCTION = re.compile(r"<function=([^>\s]+)\s*>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)\s*>(.*?)</parameter>", re.DOTALL)
_MARKERS = (CLOSE, "</function>")


class IllFormed(SlimeAglError):
    """Tool-call syntax that is broken or cut; no call may be made from it."""

    boundary = "chat"


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


class Calls(Struct, frozen=True):
    """text: outside the calls. calls: (name, arguments as the JSON text of an object), in order.

    Raises:
        IllFormed: a name is not text, is blank, or cannot be encoded as UTF-8 (JSON can escape half a surrogate pair).
    """

    text: str
    calls: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        for name, _ in self.calls:
            if not isinstance(name, str) or not name.strip():
                raise IllFormed(f"a call's name is {name!r}, not the name of a tool")
            try:
                name.encode("utf-8")
            except UnicodeEncodeError as error:
                raise IllFormed(f"a call's name is not text: {error}") from error


def read_calls(text: str, tools: Sequence[Mapping[str, object]]) -> Calls:
    """Parse every call in `text`. All or nothing: one broken or unclosed call voids the others.

    Raises:
        IllFormed: a marker is unmatched, or the text between two markers is not a call.
    """
    outside: list[str] = []
    calls: list[tuple[str, str]] = []
    at = 0
    while start := _START.search(text, at):
        call, end = _read_call(text, start.end(), tools)
        if start[0]:
            close = _END.match(text, end)
            if close is None:
                raise IllFormed(f"the call to {call[0]} is not followed by {CLOSE}")
            end = close.end()
        outside.append(text[at : start.start()])
        calls.append(call)
        at = end
    rest = "".join(outside) + text[at:]
    left = next((marker for marker in _MARKERS if marker in rest), None)
    if left is not None:
        raise IllFormed(f"{left} closes no call")
    return Calls(rest.strip() if calls else text, tuple(calls))


def object_text(arguments: object) -> str:
    """Return a call's arguments as the JSON text of an object; None and '' give the empty object.

    Raises:
        IllFormed: they are not an object, or cannot be written as standard JSON in UTF-8.
    """
    try:
        value = _DECODER.decode(arguments or "{}") if arguments is None or isinstance(arguments, str) else arguments
        if not isinstance(value, dict):
            raise IllFormed(f"arguments are a {type(value).__name__}, not an object")
        text = _ENCODER.encode(value)
        text.encode("utf-8")
    except (ValueError, TypeError, RecursionError) as error:
        raise IllFormed(f"arguments are not JSON: {error}") from error
    return text


def _read_call(text: str, at: int, tools: Sequence[Mapping[str, object]]) -> tuple[tuple[str, str], int]:
    """Parse the call at position `at`; return it and the position after it."""
    if text.startswith(FUNCTION, at):
        match = _FUNCTION.match(text, at)
        if match is None:
            raise IllFormed("<function= is not closed")
        return _read_function(match[1], match[2], tools), match.end()
    try:
        call, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise IllFormed(f"a call is not JSON: {error}") from error
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        raise IllFormed("a call has no name")
    return (call["name"], object_text(call.get("arguments", call.get("parameters", {})))), end


def _read_function(name: str, body: str, tools: Sequence[Mapping[str, object]]) -> tuple[str, str]:
    if _PARAMETER.sub("", body).strip():
        raise IllFormed(f"<function={name}> has text outside its parameters")
    properties = _properties(name, tools)
    arguments = {key: _typed(value, properties.get(key)) for key, value in _PARAMETER.findall(body)}
    return name, object_text(arguments)


def _properties(name: str, tools: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    for tool in tools:
        function = _object(tool.get("function"))
        if function.get("name") == name:
            return _object(_object(function.get("parameters")).get("properties"))
    return {}


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _typed(value: str, schema: object) -> object:
    """Parse a parameter by its schema: a string unchanged, any other type as JSON where it is JSON."""
    value = value.removeprefix("\n").removesuffix("\n")
    kinds = _kinds(schema)
    if kinds <= {"string"}:
        return value
    try:
        read = _DECODER.decode(value)
    except (ValueError, RecursionError):
        return value
    return value if "string" in kinds and read is not None else read


def _kinds(schema: object) -> set[str]:
    """Return the JSON types that a schema allows; empty if it names none."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type") or ()
    kinds = {named} if isinstance(named, str) else {kind for kind in named if isinstance(kind, str)}
    return kinds.union(*(_kinds(option) for option in schema.get("anyOf") or ()))
