"""Convert Anthropic's content blocks to chat messages, and answers to blocks."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from slime_agl.chat.template.messages import as_object
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.request import Message, TurnAnswer
from slime_agl.gateway.turn.siblings import TURN

Block = dict[str, Any]

# A client adds this line for its service, with a number that changes per call and would break every continuation.
SERVICE_LINE = "x-anthropic-billing-header:"


def system_message(system: Any) -> list[Message]:
    """Convert the system prompt, a text or text blocks, to at most one message."""
    if isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    if not isinstance(system, list):
        raise bad_field("system", f"system must be a text or a list of text blocks, got {type(system).__name__}")
    texts = [_text(block, f"system[{at}]") for at, block in enumerate(system)]
    texts = [text for text in texts if not text.startswith(SERVICE_LINE)]
    return [{"role": "system", "content": "\n".join(texts)}] if texts else []


def messages_of(messages: Iterable[Message], first: int = 0) -> list[Message]:
    """Convert messages to chat shape, where each tool result is a message. first: the place of the first of them.

    Raises:
        Refusal: 400 for a role or block that the trained model cannot be given.
    """
    told: list[Message] = []
    for at, message in enumerate(messages, first):
        where, role, content = f"messages[{at}]", message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise bad_field(where, f"{where} has role {role!r}; it must be 'user' or 'assistant'")
        if isinstance(content, str):
            told.append({"role": role, "content": content})
            continue
        if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            raise bad_field(where, f"{where}.content must be a text or a list of content blocks")
        told += [_assistant(content, where)] if role == "assistant" else _said(role, content, where)
    return told


def _assistant(blocks: list[Block], where: str) -> Message:
    texts, thoughts, calls, name = [], [], [], ""
    for at, block in enumerate(blocks):
        kind, place = block.get("type"), f"{where}.content[{at}]"
        if kind == "text":
            texts.append(_text(block, place))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
            name = _signed(block.get("signature"))
        elif kind == "tool_use":
            if not isinstance(block.get("name"), str) or not isinstance(block.get("id"), str):
                raise bad_field(place, f"{place} is a tool_use, so it must have an id and a name")
            function = {"name": block["name"], "arguments": block.get("input") or {}}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise _unknown(kind, place)
    message: Message = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if name:
        message[TURN] = name
    return message


def _signed(signature: Any) -> str:
    """The turn that a thinking block's signature names (see `blocks_of`), '' if it is not ours."""
    try:
        return base64.b64decode(signature, validate=True).decode("ascii")
    except (TypeError, ValueError):
        return ""


def _said(role: str, blocks: list[Block], where: str) -> list[Message]:
    """Convert blocks to one message per tool result, and messages for the parts between them."""
    told: list[Message] = []
    parts: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        place = f"{where}.content[{at}]"
        if block.get("type") == "tool_result":
            if parts:
                told.append({"role": role, "content": parts})
                parts = []
            told.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block, place)})
        else:
            parts.append(_part(block, place))
    return [*told, {"role": role, "content": parts}] if parts else told


def _result(block: Block, where: str) -> str | list[dict[str, Any]]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        text = content or ""
        failed = block.get("is_error") and not text.lower().startswith("error")
        return (f"Error: {text}" if text else "Error") if failed else text
    if not isinstance(content, list):
        raise bad_field(where, f"{where}.content must be a text or a list of content blocks")
    parts = [_part(part, f"{where}.content[{at}]") for at, part in enumerate(content)]
    failed = block.get("is_error") and not str(parts[0].get("text") if parts else "").lower().startswith("error")
    return [{"type": "text", "text": "Error:"}, *parts] if failed else parts


def _part(block: Any, where: str) -> dict[str, Any]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return {"type": "text", "text": _text(block, where)}
    source = block.get("source") if kind == "image" else None
    if isinstance(source, dict) and source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    if isinstance(source, dict) and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": source.get("url")}}
    raise _unknown(kind, where)


def _text(block: Any, where: str) -> str:
    if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise bad_field(where, f"{where} must be a text block {{type: 'text', text}}")
    return block["text"]


def _unknown(kind: Any, where: str) -> Refusal:
    return bad_field(where, f"{where} is a block of type {kind!r}, which this endpoint does not accept")


def blocks_of(answer: TurnAnswer, *, thinking: bool) -> list[Block]:
    """Content blocks of an answer. thinking: include it, with a signature that names the turn when sent back."""
    reply = answer.reply
    blocks: list[Block] = []
    if thinking and reply.reasoning:
        signature = base64.b64encode(answer.turn.turn_id.encode()).decode()
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": signature})
    if reply.text.strip() or not reply.tool_calls:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": as_object(call.arguments)})
    return blocks


def block_events(index: int, block: Block) -> Iterable[dict[str, Any]]:
    """Stream events of a block."""
    kind = block["type"]
    if kind == "thinking":
        empty = {**block, "thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    elif kind == "tool_use":
        empty = {**block, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}]
    else:
        empty = {**block, "text": ""}
        deltas = [{"type": "text_delta", "text": block["text"]}]
    yield {"type": "content_block_start", "index": index, "content_block": empty}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}
