"""The two habits in which chat templates differ: how they take arguments, and how they take content."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    """arguments_as_text: the template concatenates JSON text. content_as_parts: it reads a list of parts only."""

    arguments_as_text: bool = False
    content_as_parts: bool = False

    def apply(self, message: dict) -> dict:
        """Return a normalised message in this shape. The message itself is not changed."""
        if self.content_as_parts and isinstance(message["content"], str):
            message = {**message, "content": [{"type": "text", "text": message["content"]}]}
        if self.arguments_as_text and "tool_calls" in message:
            message = {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        return message


def find_shape(render: Callable[[list[dict], list[dict] | None], str | None]) -> Shape:
    """Find the shape a template takes by trying it.

    render: renders messages with tools, or returns None when the template refuses.
    A template that writes arguments as a Python literal is better served with text.
    """

    def trial(shape: Shape, messages: list[dict], tools: Any) -> str:
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
