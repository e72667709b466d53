"""Custom tools, whose input is one text instead of JSON.

Templates know functions only, so each is shown as a function with the one argument `input`. A call goes back to the
client as the text, in OpenAI's shape `{id, type: 'custom', custom: {name, input}}`, and is recognised when it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

ARGUMENT = "input"


def as_function(name: str, description: str, grammar: tuple[str, str] | None) -> dict[str, Any]:
    """Return the function that a template shows for a custom tool.

    grammar: syntax and definition of its input. The model is told of it; sampling is not bound to it.
    """
    told = [description] if description else []
    if grammar is not None:
        told.append(f"The input follows this {grammar[0]} grammar:\n{grammar[1]}")
    argument = {"type": "string", "description": "The whole input of the tool, as plain text."}
    parameters = {"type": "object", "properties": {ARGUMENT: argument}, "required": [ARGUMENT]}
    shown = {"description": "\n\n".join(told)} if told else {}
    return {"type": "function", "function": {"name": name, **shown, "parameters": parameters}}


def input_of(arguments: str) -> str:
    """Return a call's input: its one argument, or its arguments as they stand where the model wrote others."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    if isinstance(given, dict) and given.keys() == {ARGUMENT} and isinstance(given[ARGUMENT], str):
        return given[ARGUMENT]
    return arguments


def custom_call(call_id: str, name: str, text: str) -> dict[str, Any]:
    """Return an entry of `tool_calls`, in a message as it is sent."""
    return {"id": call_id, "type": "custom", "custom": {"name": name, ARGUMENT: text}}


def read_custom_call(call: Mapping[str, object]) -> tuple[str, str] | None:
    """Return name and input of an entry of `tool_calls`, or None if it is not a custom tool's."""
    custom = call.get("custom") if call.get("type") == "custom" else None
    if not isinstance(custom, Mapping):
        return None
    name, text = custom.get("name"), custom.get(ARGUMENT)
    return (name, text) if isinstance(name, str) and isinstance(text, str) else None
