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


def _item(index: int, item: dict[str, Any]) -> Iterator[Event]:
    at = {"output_index": index}
    empty = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    yield "response.output_item.added", {**at, "item": {**item, "status": "in_progress", **empty}}
    within = {**at, "item_id": item["id"]}
    if item["type"] == "function_call":
        yield "response.function_call_arguments.delta", {**within, "delta": item["arguments"]}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", {**within, **done}
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
