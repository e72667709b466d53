"""Stream events of a finished response, in the order that the protocol prescribes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from slime_agl.gateway.protocols.protocol import event

Event = tuple[str, dict[str, Any]]


def response_events(response: dict[str, Any]) -> Iterator[bytes]:
    """The server-sent events, numbered from 0."""
    blank = {"incomplete_details": None, "completed_at": None, "output": [], "usage": None}
    begun = {**response, "status": "in_progress", **blank}
    numbers = count()
    for kind, body in _events(response, begun):
        yield event({"type": kind, "sequence_number": next(numbers), **body}, kind)


def _events(response: dict[str, Any], begun: dict[str, Any]) -> Iterator[Event]:
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(response["output"]):
        yield from _item(index, item)
    yield f"response.{response['status']}", {"response": response}


# Types of calls: the field of their input, the events of it, and the fields of the last one.
_CALLS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "function_call": ("arguments", "response.function_call_arguments", ("name", "arguments")),
    "custom_tool_call": ("input", "response.custom_tool_call_input", ("input",)),
}


def _item(index: int, item: dict[str, Any]) -> Iterator[Event]:
    at = {"output_index": index}
    field, told, last = _CALLS.get(item["type"], ("", "", ()))
    empty = {field: ""} if field else {"content": []}
    yield "response.output_item.added", {**at, "item": {**item, "status": "in_progress", **empty}}
    within = {**at, "item_id": item["id"]}
    if field:
        yield f"{told}.delta", {**within, "delta": item[field]}
        yield f"{told}.done", {**within, **{name: item[name] for name in last}}
    else:
        for number, part in enumerate(item["content"]):
            yield from _part({**within, "content_index": number}, part)
    yield "response.output_item.done", {**at, "item": item}


def _part(at: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
    kind, logprobs = part["type"], {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    empty = {**part, "text": "", **({"logprobs": []} if logprobs else {})}
    yield "response.content_part.added", {**at, "part": empty}
    yield f"response.{kind}.delta", {**at, "delta": part["text"], **logprobs}
    yield f"response.{kind}.done", {**at, "text": part["text"], **logprobs}
    yield "response.content_part.done", {**at, "part": part}
