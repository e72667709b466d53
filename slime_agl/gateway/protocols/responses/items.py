"""Convert items of the Responses protocol to chat messages, and answers to items."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from typing import Any

from slime_agl.chat.template.freeform import custom_call, input_of
from slime_agl.gateway.protocols.logprobs import TokenBytes, chat_logprobs
from slime_agl.gateway.protocols.responses.stored import Item
from slime_agl.gateway.protocols.responses.tools import Offer, shown_name
from slime_agl.gateway.refusal import bad_field
from slime_agl.gateway.request import Message, TurnAnswer
from slime_agl.gateway.turn.siblings import TURN
from slime_agl.trace.turn import LENGTH

# Ids of calls minted here: all calls of a turn share the part before the last two digits.
_MINTED = re.compile(r"(c\d{6})\d\d")
# Ids of items minted here: a prefix, the turn in hex, and for calls a number.
_ITEM_ID = re.compile(r"(?:msg|rs|fc|ctc)_([0-9a-f]{18})\d*")
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def messages_of(items: Iterable[Item], find: Callable[[str], Item | None]) -> list[Message]:
    """Convert items to messages. Items of one answer become one assistant message.

    find: looks up a stored item by id, for references.

    Raises:
        Refusal: 400 for an item that the trained model cannot be given.
    """
    told = _Messages()
    for at, item in enumerate(items):
        where = f"input[{at}]"
        if item.get("type") == "item_reference":
            found = find(str(item.get("id")))
            if found is None:
                raise bad_field(where, f"{where} refers to item {item.get('id')!r}, which no stored response holds")
            item = found
        told.add(item, where)
    return told.messages


class _Messages:
    """Messages so far. `_answer` is the last one if it is an answer that further items may belong to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._answer: Message | None = None

    def add(self, item: Item, where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            texts = _texts(item.get("content") or item.get("summary") or [], where)
            _name(self._start(reasoning_content="\n".join(texts)), item)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "custom_tool_call":
            self._custom_call(item, where)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            content = output if isinstance(output, str) else [_part(part, where) for part in _list(output, where)]
            self._say({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        else:
            raise bad_field(
                where,
                f"{where} is an item of type {kind!r}; this endpoint takes messages, reasoning, calls of functions and "
                "custom tools, and their outputs",
            )

    def _message(self, item: Item, where: str) -> None:
        content = item.get("content")
        if item.get("role") != "assistant":
            parts = content if isinstance(content, str) else [_part(part, where) for part in _list(content, where)]
            self._say({"role": item.get("role"), "content": parts})
            return
        text = content if isinstance(content, str) else "".join(_texts(content, where))
        answer = self._answer
        if answer is None or answer.get("content") is not None or "tool_calls" in answer:
            answer = self._start()
        answer["content"] = text
        _name(answer, item)

    def _call(self, item: Item, where: str) -> None:
        call_id, name = _called(item, where)
        function = {"name": name, "arguments": item.get("arguments")}
        self._add_call({"id": call_id, "type": "function", "function": function})

    def _custom_call(self, item: Item, where: str) -> None:
        call_id, name = _called(item, where)
        text = item.get("input")
        if not isinstance(text, str):
            raise bad_field(where, f"{where} has an input of type {type(text).__name__}; a custom tool's is a text")
        self._add_call(custom_call(call_id, name, text))

    def _add_call(self, call: dict[str, Any]) -> None:
        answer = self._answer or self._same_turn(call["id"]) or self._start()
        answer.setdefault("tool_calls", []).append(call)

    def _same_turn(self, call_id: str) -> Message | None:
        """Find the message with other calls of the turn that made `call_id`, across outputs in between."""
        turn = _MINTED.fullmatch(call_id)
        if turn is None:
            return None
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                first = _MINTED.fullmatch((message.get("tool_calls") or [{"id": ""}])[0]["id"])
                return message if first and first[1] == turn[1] else None
            if message["role"] != "tool":
                return None
        return None

    def _start(self, **more: Any) -> Message:
        answer = self._answer = {"role": "assistant", "content": None, **more}
        self.messages.append(answer)
        return answer

    def _say(self, message: Message) -> None:
        self._answer = None
        self.messages.append(message)


def _called(item: Item, where: str) -> tuple[str, str]:
    """Return a call's id, and the name that the model knows the tool by."""
    if not isinstance(item.get("name"), str) or not isinstance(item.get("call_id"), str):
        raise bad_field(where, f"{where} is a {item.get('type')}, so it must have a name and a call_id")
    return item["call_id"], shown_name(item.get("namespace"), item["name"])


def _name(answer: Message, item: Item) -> None:
    """Record which turn the answer is, if the item's id reveals it."""
    found = _ITEM_ID.fullmatch(item["id"]) if isinstance(item.get("id"), str) else None
    if found:
        answer[TURN] = found[1]


def items_of(answer: TurnAnswer, *, token_bytes: TokenBytes | None, sealed_reasoning: bool, offer: Offer) -> list[Item]:
    """Output items of an answer: reasoning, text, calls. Deterministic.

    token_bytes: bytes of each id, if logprobs are wanted. sealed_reasoning: the agent keeps no state here and wants a
    token to send back; it names the turn. offer: the tools of the request.
    """
    reply, name = answer.reply, answer.turn.turn_id.removeprefix("resp_")
    cut = answer.turn.finish == LENGTH and not reply.tool_calls
    items: list[Item] = []
    if reply.reasoning:
        sealed = base64.b64encode(name.encode()).decode() if sealed_reasoning else None
        content = [{"type": "reasoning_text", "text": reply.reasoning}]
        item = {"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": content}
        items.append({**item, "encrypted_content": sealed, "status": "completed"})
    if reply.text or not reply.tool_calls:
        logprobs = chat_logprobs(answer.turn, token_bytes) if token_bytes else []
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": logprobs}
        item = {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": [part]}
        items.append({**item, "status": "incomplete" if cut else "completed"})
    for at, call in enumerate(reply.tool_calls):
        space, own = offer.spaces.get(call.name, ("", call.name))
        within = {"namespace": space} if space else {}
        item = {"call_id": call.id, "name": own, **within, "status": "completed"}
        if call.name in offer.customs:
            item |= {"id": f"ctc_{name}{at:02d}", "type": "custom_tool_call", "input": input_of(call.arguments)}
        else:
            item |= {"id": f"fc_{name}{at:02d}", "type": "function_call", "arguments": call.arguments}
        items.append(item)
    return items


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise bad_field(where, f"{where} has content of type {type(value).__name__}; send a text or a list of parts")
    return value


def _part(part: Any, where: str) -> dict[str, Any]:
    """Convert a message part to the chat shape."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part.get("detail") or "auto"}}
    raise bad_field(where, f"{where} has a part of type {kind!r}; this endpoint takes text and images by URL")


def _texts(parts: Any, where: str) -> list[str]:
    """Texts of an answer's parts."""
    return [
        part["refusal"] if isinstance(part, dict) and part.get("type") == "refusal" else _part(part, where)["text"]
        for part in _list(parts, where)
    ]
