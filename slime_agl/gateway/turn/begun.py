"""Requests whose last message is the beginning of the answer, which the model is to go on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slime_agl.chat.template.messages import Reply
from slime_agl.gateway.refusal import bad_field

Message = dict[str, Any]


def split_begun(body: Mapping[str, Any], messages: list[Message]) -> tuple[list[Message], str | None]:
    """The messages before the one that `continue_final_message` asks to go on with, and its text; None without the flag.

    A last assistant message is finished unless the flag is set, as in vLLM and SGLang.

    Raises:
        Refusal: the flags contradict each other, or the last message cannot be gone on with.
    """
    wanted, opens = body.get("continue_final_message"), body.get("add_generation_prompt")
    for name, value in (("continue_final_message", wanted), ("add_generation_prompt", opens)):
        if value not in (None, True, False):
            raise bad_field(name, f"{name} is {value!r}, it must be true or false")
    if not wanted:
        if opens is False:
            raise bad_field(
                "add_generation_prompt",
                "without a generation prompt the model only goes on with a message; set continue_final_message as well",
            )
        return messages, None
    if opens:
        raise bad_field("add_generation_prompt", "a final message cannot be gone on with after a generation prompt")
    text = begun_text(messages)
    if text is None:
        raise bad_field(
            "messages", "continue_final_message needs a last message of the assistant with text and no calls"
        )
    return messages[:-1], text


def begun_text(messages: list[Message]) -> str | None:
    """The text of a last assistant message that only says something; None when there is none."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        return " ".join(part["text"] for part in content)
    return content if isinstance(content, str) else None


def without_begun(reply: Reply, begun: str) -> Reply:
    """What an agent is answered: it has the beginning already."""
    start = next((start for start in (begun, begun.strip()) if reply.text.startswith(start)), "")
    return replace(reply, text=reply.text[len(start) :]) if start else reply
