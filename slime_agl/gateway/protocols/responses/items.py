"""Items of the Responses protocol as chat messages, and an answer as items."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from typing import Any

from slime_agl.gateway.protocols.logprobs import TokenBytes, chat_logprobs
from slime_agl.gateway.protocols.responses.stored import Item
from slime_agl.gateway.refusal import bad_field
from slime_agl.gateway.request import TurnAnswer
from slime_agl.gateway.turn.siblings import TURN
from slime_agl.trace.turn import LENGTH

Message = dict[str, Any]

# Ids of calls that this gateway made: all calls of one turn share what stands before the last two digits.
_MINTED = re.compile(r"(c\d{6})\d\d")
# Items that this gateway made name their turn: hex digits, behind a prefix; a call's number follows.
_ITEM_ID = re.compile(r"(?:msg|rs|fc)_([0-9a-f]{18})\d*")
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def messages_of(items: Iterable[Item], find: Callable[[str], Item | None]) -> list[Message]:
    """The conversation that the items tell. Items of one answer become one assistant message.

    find: a stored item by its id, for references.

    Raises:
        Refusal: 400 for an item that has no meaning to the trained model.
    """
    told = _Telling()
    for at, item in enumerate(items):
        where = f"input[{at}]"
        if item.get("type") == "item_reference":
            found = find(str(item.get("id")))
            if found is None:
                raise bad_field(where, f"{where} refers to item {item.get('id')!r}, which no stored response holds")
            item = found
        told.tell(item, where)
    return told.messages


class _Telling:
    """Messages so far, and whether the last one is an answer that further items belong to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._answer: Message | None = None

    def tell(self, item: Item, where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._start(reasoning_content="\n".join(_texts(item.get("content") or item.get("summary") or [], where)))
            self._name(item)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            output = item.get("output")
            content = output if isinstance(output, str) else [_part(part, where) for part in _list(output, where)]
            self._say({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        else:
            raise bad_field(where, f"{where} is an item of type {kind!r}; this endpoint takes messages, reasoning, "
                                   "function calls and their outputs")  # fmt: skip

    def _message(self, item: Item, where: str) -> None:
        content = item.get("content")
        if item.get("role") != "assistant":
            parts = content if isinstance(content, str) else [_part(part, where) for part in _list(content, where)]
            self._say({"role": item.get("role"), "content": parts})
            return
        text = content if isinstance(content, str) else "".join(_texts(content, where))
        if self._answer is None or self._answer.get("content") is not None or "tool_calls" in self._answer:
            self._start()
        self._answer["content"] = text
        self._name(item)

    def _call(self, item: Item, where: str) -> None:
        if not isinstance(item.get("name"), str) or not isinstance(item.get("call_id"), str):
            raise bad_field(where, f"{where} is a function_call, so it must have a name and a call_id")
        call = {
            "id": item["call_id"],
            "type": "function",
            "function": {"name": item["name"], "arguments": item.get("arguments")},
        }
        answer = self._answer or self._same_turn(item["call_id"]) or self._start()
        answer.setdefault("tool_calls", []).append(call)

    def _name(self, item: Item) -> None:
        """Note which turn the answer is, when its item says so."""
        found = _ITEM_ID.fullmatch(item["id"]) if isinstance(item.get("id"), str) else None
        if found:
            self._answer[TURN] = found[1]

    def _same_turn(self, call_id: str) -> Message | None:
        """The message with the other calls of the turn that made `call_id`, when outputs stand between them."""
        turn = _MINTED.fullmatch(call_id)
        for message in reversed(self.messages) if turn else ():
            if message["role"] == "assistant":
                first = _MINTED.fullmatch((message.get("tool_calls") or [{"id": ""}])[0]["id"])
                return message if first and first[1] == turn[1] else None
            if message["role"] != "tool":
                return None
        return None

    def _start(self, **more: Any) -> Message:
        self._answer = {"role": "assistant", "content": None, **more}
        self.messages.append(self._answer)
        return self._answer

    def _say(self, message: Message) -> None:
        self._answer = None
        self.messages.append(message)


def items_of(answer: TurnAnswer, *, token_bytes: TokenBytes | None, sealed_reasoning: bool) -> list[Item]:
    """The output items of an answer: reasoning, text, calls. Asked again, they are the same.

    token_bytes: the bytes of each id, when logprobs are wanted. sealed_reasoning: the agent keeps no state here and
    wants something to hand back; it names the turn.
    """
    reply, name = answer.reply, answer.turn.turn_id.removeprefix("resp_")
    cut = answer.turn.finish == LENGTH and not reply.tool_calls
    items: list[Item] = []
    if reply.reasoning:
        sealed = base64.b64encode(name.encode()).decode() if sealed_reasoning else None
        content = [{"type": "reasoning_text", "text": reply.reasoning}]
        items.append({"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": content,
                      "encrypted_content": sealed, "status": "completed"})  # fmt: skip
    if reply.text or not reply.tool_calls:
        logprobs = chat_logprobs(answer.turn, token_bytes) if token_bytes else []
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": logprobs}
        items.append({"id": f"msg_{name}", "type": "message", "role": "assistant", "content": [part],
                      "status": "incomplete" if cut else "completed"})  # fmt: skip
    items += [
        {"id": f"fc_{name}{at:02d}", "type": "function_call", "call_id": call.id, "name": call.name,
         "arguments": call.arguments, "status": "completed"}
        for at, call in enumerate(reply.tool_calls)
    ]  # fmt: skip
    return items


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise bad_field(where, f"{where} has content of type {type(value).__name__}; send a text or a list of parts")
    return value


def _part(part: Any, where: str) -> dict[str, Any]:
    """A part of a message as chat completions have it."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part.get("detail") or "auto"}}
    raise bad_field(where, f"{where} has a part of type {kind!r}; this endpoint takes text and images by URL")


def _texts(parts: Any, where: str) -> list[str]:
    """The texts of an answer's parts."""
    return [
        part["refusal"] if isinstance(part, dict) and part.get("type") == "refusal" else _part(part, where)["text"]
        for part in _list(parts, where)
    ]
