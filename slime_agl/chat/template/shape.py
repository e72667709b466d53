"""The two input formats in which chat templates differ: call arguments and message content."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from slime_agl.chat.template.messages import call_entry
from slime_agl.chat.template.tools import Tools

WORD = "lighthouse"
PROBE_TOOLS = Tools(
    [
        {
            "type": "function",
            "function": {
                "name": "probe_tool",
                "description": "Look something up.",
                "parameters": {"type": "object", "properties": {"probe": {"type": "string"}}, "required": ["probe"]},
            },
        }
    ]
)
_USER = {"role": "user", "content": WORD}
_CALLED = [
    _USER,
    {"role": "assistant", "content": "", "tool_calls": [call_entry("probe0001", "probe_tool", {"probe": WORD})]},
    {"role": "tool", "content": WORD, "tool_call_id": "probe0001", "name": "probe_tool"},
]


@dataclass(frozen=True, slots=True)
class Shape:
    """arguments_as_text: call arguments must be JSON text. content_as_parts: content must be a list of parts."""

    arguments_as_text: bool = False
    content_as_parts: bool = False

    def apply(self, message: dict) -> dict:
        """Return a normalised message in this shape; the input is not modified."""
        if self.content_as_parts and isinstance(message["content"], str):
            message = {**message, "content": [{"type": "text", "text": message["content"]}]}
        if self.arguments_as_text and "tool_calls" in message:
            message = {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        return message


def find_shape(render: Callable[[list[dict], list[dict] | None], str | None]) -> Shape:
    """Find the shape that a template takes, by trial.

    render: renders messages with tools; returns None if the template refuses them. If a template would write
    arguments as a Python literal, text is preferred.
    """

    def trial(shape: Shape, messages: list[dict], tools: list[dict] | None) -> str:
        return render([shape.apply(message) for message in messages], tools) or ""

    parts = Shape(content_as_parts=True)
    base = parts if WORD not in trial(Shape(), [_USER], None) and WORD in trial(parts, [_USER], None) else Shape()
    written = trial(base, _CALLED, PROBE_TOOLS)
    if written and "{'probe':" not in written:
        return base
    texts = Shape(arguments_as_text=True, content_as_parts=base.content_as_parts)
    return texts if f'{{"probe": "{WORD}"}}' in trial(texts, _CALLED, PROBE_TOOLS) else base


def _with_text(call: dict) -> dict:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        return call
    return {**call, "function": {**call["function"], "arguments": json.dumps(arguments, ensure_ascii=False)}}
