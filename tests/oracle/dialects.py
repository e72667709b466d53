"""The four protocols from an agent's side: requests from a history of its own items, and replies back into items."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

Item = Any


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. history, new: the agent's items. previous: response id to continue, if supported."""

    history: list[Item]
    new: list[Item]
    tools: tuple[str, ...] = ()
    stream: bool = False
    n: int = 1
    limit: int = 4096
    previous: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """The agent's reply. items: additions to its history. calls: tool-call ids. seen: all the text it received."""

    id: str
    items: list[Item]
    calls: list[str] = field(default_factory=list)
    seen: str = ""


class Chat:
    path, several = "/chat/completions", True

    def start(self, system: str, text: str) -> list[Item]:
        return [{"role": "system", "content": system}, *self.user(text)]

    def user(self, text: str) -> list[Item]:
        return [{"role": "user", "content": text}]

    def results(self, results: list[tuple[str, str]]) -> list[Item]:
        return [{"role": "tool", "tool_call_id": name, "content": text} for name, text in results]

    def later(self, text: str) -> list[Item]:
        """A system message in the middle of a conversation."""
        return [{"role": "system", "content": text}]

    def body(self, ask: Ask) -> dict[str, Any]:
        tools = [{"type": "function", "function": _function(name)} for name in ask.tools]
        return (
            {"messages": ask.history + ask.new, "max_tokens": ask.limit, "stream": ask.stream}
            | ({"tools": tools} if tools else {})
            | ({"n": ask.n} if ask.n > 1 else {})
        )

    def read(self, raw: bytes, stream: bool) -> list[Said]:
        body = _joined_chunks(raw) if stream else json.loads(raw)
        return [self._said(body["id"], choice["message"]) for choice in body["choices"]]

    def edited(self, items: list[Item], text: str) -> list[Item] | None:
        """Change the text of the first answer in the items; None without one."""
        return _changed(items, lambda m: m["role"] == "assistant", {"content": text})

    def sloppy(self, items: list[Item], rng: random.Random) -> list[Item]:
        """Return the items as a careless client echoes them."""
        habit = rng.randrange(16)
        return [_sloppy(item, habit) for item in items]

    def _said(self, name: str, message: dict[str, Any]) -> Said:
        calls = message.get("tool_calls") or []
        return Said(name, [message], [call["id"] for call in calls], json.dumps(message, ensure_ascii=False))


class Responses:
    path, several = "/responses", False

    def start(self, system: str, text: str) -> list[Item]:
        return [{"type": "message", "role": "system", "content": system}, *self.user(text)]

    def user(self, text: str) -> list[Item]:
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]

    def results(self, results: list[tuple[str, str]]) -> list[Item]:
        return [{"type": "function_call_output", "call_id": name, "output": text} for name, text in results]

    def later(self, text: str) -> list[Item]:
        return [{"type": "message", "role": "developer", "content": text}]

    def body(self, ask: Ask) -> dict[str, Any]:
        told = (
            {"input": ask.new, "previous_response_id": ask.previous}
            if ask.previous
            else {"input": ask.history + ask.new}
        )
        tools = [{"type": "function", **_function(name)} for name in ask.tools]
        return told | {"max_output_tokens": ask.limit, "stream": ask.stream} | ({"tools": tools} if tools else {})

    def read(self, raw: bytes, stream: bool) -> list[Said]:
        body = json.loads(raw) if not stream else None
        if body is None:
            events = _events(raw)
            body = events[-1]["response"]
            parts = [e["item"] for e in events if e["type"] == "response.output_item.done"]
            assert parts == body["output"], "the stream's items are not those of the response"
        calls = [item["call_id"] for item in body["output"] if item["type"] == "function_call"]
        return [Said(body["id"], body["output"], calls, json.dumps(body["output"], ensure_ascii=False))]

    def edited(self, items: list[Item], text: str) -> list[Item] | None:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return _changed(items, lambda item: item.get("role") == "assistant", {"content": content})

    def sloppy(self, items: list[Item], rng: random.Random) -> list[Item]:
        dropped = rng.random() < 0.5
        return [item for item in items if not (dropped and item.get("type") == "reasoning")]


class Anthropic:
    path, several = "/messages", False

    def start(self, system: str, text: str) -> list[Item]:
        return [{"role": "system", "content": system}, *self.user(text)]

    def user(self, text: str) -> list[Item]:
        return [{"role": "user", "content": [{"type": "text", "text": text}]}]

    def results(self, results: list[tuple[str, str]]) -> list[Item]:
        blocks = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in results]
        return [{"role": "user", "content": blocks}]

    def later(self, text: str) -> list[Item]:
        return [{"role": "system", "content": text}]

    def body(self, ask: Ask) -> dict[str, Any]:
        items = ask.history + ask.new
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in ask.tools]
        return {"system": items[0]["content"], "messages": items[1:], "max_tokens": ask.limit, "stream": ask.stream} | (
            {"tools": tools} if tools else {}
        )

    def read(self, raw: bytes, stream: bool) -> list[Said]:
        body = _joined_blocks(raw) if stream else json.loads(raw)
        blocks = body["content"]
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        return [
            Said(body["id"], [{"role": "assistant", "content": blocks}], calls, json.dumps(blocks, ensure_ascii=False))
        ]

    def edited(self, items: list[Item], text: str) -> list[Item] | None:
        return _changed(items, lambda m: m["role"] == "assistant" and not _calls_tools(m), {"content": text})

    def sloppy(self, items: list[Item], rng: random.Random) -> list[Item]:
        return items


class Texts:
    """Legacy completions with text prompts: an item is a piece of text."""

    path, several = "/completions", True

    def start(self, system: str, text: str) -> list[Item]:
        return [f"{system}\n{text}\n"]

    def user(self, text: str) -> list[Item]:
        return [f"\n{text}\n"]

    def results(self, results: list[tuple[str, str]]) -> list[Item]:
        raise NotImplementedError("a text has no tool calls")

    def later(self, text: str) -> list[Item]:
        return []

    def body(self, ask: Ask) -> dict[str, Any]:
        return {"prompt": "".join(ask.history + ask.new), "max_tokens": ask.limit, "stream": ask.stream, "n": ask.n}

    def read(self, raw: bytes, stream: bool) -> list[Said]:
        events = _events(raw) if stream else [json.loads(raw)]
        choices = [choice for event in events for choice in event["choices"]]
        return [Said(events[0]["id"], [choice["text"]], [], choice["text"]) for choice in choices]

    def edited(self, items: list[Item], text: str) -> list[Item] | None:
        return [items[0], f"{text}\n", *items[2:]] if len(items) > 1 else None

    def sloppy(self, items: list[Item], rng: random.Random) -> list[Item]:
        return items


class Ids(Texts):
    """Legacy completions with prompts of token ids, kept by the agent: an item is a list of ids."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def start(self, system: str, text: str) -> list[Item]:
        return [self._ids(f"{system}\n{text}\n")]

    def user(self, text: str) -> list[Item]:
        return [self._ids(f"\n{text}\n")]

    def body(self, ask: Ask) -> dict[str, Any]:
        prompt = [token for item in ask.history + ask.new for token in item]
        return {"prompt": prompt, "max_tokens": ask.limit, "stream": ask.stream, "n": ask.n, "return_token_ids": True}

    def read(self, raw: bytes, stream: bool) -> list[Said]:
        events = _events(raw) if stream else [json.loads(raw)]
        choices = [choice for event in events for choice in event["choices"]]
        return [Said(events[0]["id"], [choice["token_ids"]], [], choice["text"]) for choice in choices]

    def edited(self, items: list[Item], text: str) -> list[Item] | None:
        return [items[0], self._ids(f"{text}\n"), *items[2:]] if len(items) > 1 else None

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _function(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"To {name}.", "parameters": {"type": "object", "properties": {}}}


def _changed(items: list[Item], chosen: Any, change: dict[str, Any]) -> list[Item] | None:
    at = next((at for at, item in enumerate(items) if chosen(item)), None)
    return None if at is None else [*items[:at], items[at] | change, *items[at + 1 :]]


def _calls_tools(message: Item) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(block["type"] == "tool_use" for block in content)


def _sloppy(message: Item, habit: int) -> Item:
    if message["role"] == "user" and habit & 1 and isinstance(message["content"], str):
        return message | {"content": [{"type": "text", "text": message["content"]}]}
    if message["role"] != "assistant":
        return message
    message = {key: value for key, value in message.items() if not (habit & 2 and key == "reasoning_content")}
    if habit & 4 and message.get("tool_calls"):
        calls = []
        for call in message["tool_calls"]:
            arguments = dict(reversed(json.loads(call["function"]["arguments"]).items()))
            function = call["function"] | {"arguments": json.dumps(arguments, indent=1)}
            calls.append(call | {"function": function, "index": 0})
        message["tool_calls"] = calls
    if habit & 8 and message.get("tool_calls"):
        message["content"] = None
    return message


def _events(raw: bytes) -> list[dict[str, Any]]:
    lines = [line for block in raw.split(b"\n\n") for line in block.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line[6:]) for line in lines if line != b"data: [DONE]"]


def _joined_chunks(raw: bytes) -> dict[str, Any]:
    """Join a stream of chat completions into one body."""
    messages: dict[int, dict[str, Any]] = {}
    events = _events(raw)
    for choice in (choice for event in events for choice in event["choices"]):
        message = messages.setdefault(choice["index"], {"role": "assistant", "content": None})
        delta = dict(choice["delta"])
        for call in delta.pop("tool_calls", ()):
            message.setdefault("tool_calls", []).append({key: call[key] for key in ("id", "type", "function")})
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = (message.get(key) or "") + delta[key]
    return {"id": events[0]["id"], "choices": [{"index": k, "message": m} for k, m in sorted(messages.items())]}


def _joined_blocks(raw: bytes) -> dict[str, Any]:
    """Join a stream of Anthropic's events into one message."""
    blocks: list[dict[str, Any]] = []
    message: dict[str, Any] = {}
    for event in _events(raw):
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                blocks[-1]["text"] += delta["text"]
            elif delta["type"] == "input_json_delta":
                blocks[-1]["input"] = json.loads(delta["partial_json"])
    return message | {"content": blocks}
