"""Faults of an engine's answers and connections, by name.

A lie must train nothing, whatever the product makes of it; other faults tell the truth in an unusual way, or say
nothing, and may train what was recorded. Each fault meets an agent in the middle of its conversation.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from chaos_parts.engine import Truth
from chaos_parts.wire import CLOSE, HANG, RESET, Op, chunk, json_message, message

FAULTS: dict[str, Fault] = {}
CHUNKED = ("Transfer-Encoding: chunked",)
END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """make: the bytes to send. lie: the answer must not train. times: tries affected. waits: costs a time-out."""

    name: str
    make: Callable[[Truth, Any], Iterable[Op]]
    lie: bool = True
    times: int = 1
    turn: int = 1
    waits: bool = False
    shape: Callable[[Truth], Truth] = lambda truth: truth


def body_of(truth: Truth) -> bytes:
    return json.dumps(truth.wire()).encode()


def fault(name: str, **more: Any) -> Callable[[Callable[..., Iterable[Op]]], Callable[..., Iterable[Op]]]:
    def keep(make: Callable[..., Iterable[Op]]) -> Callable[..., Iterable[Op]]:
        FAULTS[name] = Fault(name, make, **more)
        return make

    return keep


def plain(name: str, *ops: Op, **more: Any) -> None:
    """Register a fault that does not depend on what was sampled."""
    FAULTS[name] = Fault(name, lambda truth, engine: ops, **more)


def bytes_of(name: str, change: Callable[[bytes], Iterable[Op]], **more: Any) -> None:
    """Register a fault in how an honest body is sent."""
    FAULTS[name] = Fault(name, lambda truth, engine: change(body_of(truth)), **more)


def wrong(name: str, change: Callable[[dict[str, Any], dict[str, Any]], Any], **more: Any) -> None:
    """Register a fault in an answer's content: change(answer, its meta_info) edits it, or returns another."""

    def make(truth: Truth, engine: Any) -> Iterable[Op]:
        answer = copy.deepcopy(truth.wire())
        other = change(answer, answer["meta_info"])
        return [json_message(answer if other is None else other)]

    FAULTS[name] = Fault(name, make, **more)


# Connections

plain("reset without an answer", RESET)
plain("closed without an answer", CLOSE)
plain("cut in the status line", b"HTTP/1.1 20", CLOSE)
plain("cut in the headers", b"HTTP/1.1 200 OK\r\nContent-Type: appl", CLOSE)
plain("cut after the headers", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", CLOSE)
bytes_of("cut in the body", lambda body: [message(body)[:-40], CLOSE])
bytes_of("reset in the body", lambda body: [message(body)[:-40], 0.02, RESET])
bytes_of("cut in a chunk", lambda body: [message(b"", headers=CHUNKED, length="") + chunk(body)[:-40], CLOSE])
bytes_of(
    "cut at the size of a chunk", lambda body: [message(b"", headers=CHUNKED, length="") + chunk(body) + b"1f", CLOSE]
)
bytes_of("no last chunk", lambda body: [message(b"", headers=CHUNKED, length="") + chunk(body), CLOSE])
bytes_of("reset right after the answer", lambda body: [message(body), RESET], lie=False)
bytes_of("closed right after the answer", lambda body: [message(body), CLOSE], lie=False)


@fault("resets the next connection at once")
def _(truth: Truth, engine: Any) -> Iterable[Op]:
    engine.ambushes["connect"] += 1
    return [RESET]


@fault("resets the next request after its headers")
def _(truth: Truth, engine: Any) -> Iterable[Op]:
    engine.ambushes["head"] += 1
    return [RESET]


# Time

plain("hangs", HANG, waits=True)
plain("hangs in the headers", b"HTTP/1.1 200 OK\r\nContent-Le", HANG, waits=True)
bytes_of("hangs in the body", lambda body: [message(body)[:-40], HANG], waits=True)
bytes_of("drips its answer", lambda body: [op for part in pieces(message(body), 12) for op in (part, 0.02)], lie=False)
bytes_of(
    "drips for ever",
    lambda body: [op for byte in message(body, length=10**6) for op in (bytes([byte]), 0.05)] + [HANG],
    waits=True,
)
plain(
    "keeps a client waiting with 102 for ever",
    *[op for _ in range(600) for op in (b"HTTP/1.1 102 Processing\r\n\r\n", 0.1)],
    HANG,
    waits=True,
)


def pieces(whole: bytes, count: int) -> list[bytes]:
    size = len(whole) // count + 1
    return [whole[at : at + size] for at in range(0, len(whole), size)]


# HTTP

plain("answers with garbage", b"\x00\xff\x13\x37 not HTTP at all\r\n\r\n", CLOSE)
plain("answers in HTTP/2", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00d\x00\x04\x00\xa0\x00\x00", CLOSE)
bytes_of("Content-Length too short", lambda body: [message(body, length=len(body) - 30)])
bytes_of("Content-Length too long", lambda body: [message(body, length=len(body) + 30), 0.05, CLOSE])
bytes_of("Content-Length negative", lambda body: [message(body, length=-5)])
bytes_of("Content-Length not a number", lambda body: [message(body, length="many")])
bytes_of("two Content-Lengths", lambda body: [message(body, headers=[f"Content-Length: {len(body) - 7}"])])
bytes_of("Content-Length and chunks", lambda body: [message(chunk(body) + END, headers=CHUNKED, length=9)])
bytes_of("bad size of a chunk", lambda body: [message(b"zz\r\n" + body + b"\r\n" + END, headers=CHUNKED, length="")])
bytes_of(
    "gzip that nobody asked for",
    lambda body: [message(gzip.compress(body), headers=["Content-Encoding: gzip"])],
    lie=False,
)
bytes_of("gzip without saying so", lambda body: [message(gzip.compress(body))])
bytes_of("a header of 1 MB", lambda body: [message(body, headers=["X-Long: " + "x" * 1_000_000])], lie=False)
bytes_of("10,000 headers", lambda body: [message(body, headers=[f"X-{at}: y" for at in range(10_000)])], lie=False)
bytes_of(
    "100 and 102 before the answer",
    lambda body: [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + message(body)],
    lie=False,
)
bytes_of(
    "101 Switching Protocols",
    lambda body: [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n" + message(body)],
)
for _status in (301, 302, 307):
    plain(f"HTTP {_status}", message(b"", f"{_status} Moved", ["Location: http://127.0.0.1:9/generate"]))
plain("HTTP 204", b"HTTP/1.1 204 No Content\r\n\r\n")
bytes_of("HTTP 206", lambda body: [message(body, "206 Partial Content", ["Content-Range: bytes 0-9/900"])])
for _status in (400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 501, 502, 503, 504, 520, 599):
    plain(f"HTTP {_status}", json_message({"error": {"message": "broken on purpose"}}, f"{_status} Broken"))
plain("HTTP 500 without a body", message(b"", "500 Broken"))
bytes_of("an answer with status 500", lambda body: [message(body, "500 Broken")])

# Whose answer


bytes_of("answers twice", lambda body: [message(body) + message(body)], lie=False)
bytes_of("garbage after the answer", lambda body: [message(body) + b"and some garbage\r\n\r\n"], lie=False)


@fault("a late answer after a 504")
def _(truth: Truth, engine: Any) -> Iterable[Op]:
    return [json_message({"error": "gateway time-out"}, "504 Late"), 0.1, json_message(truth.wire())]


@fault("the answer to another request")
def _(truth: Truth, engine: Any) -> Iterable[Op]:
    others = [other for other in engine.earlier if other.mark[1:3] != truth.mark[1:3] and other.output]
    return [json_message((others or [truth])[0].wire() if others else {**truth.wire(), "meta_info": {}})]


@fault("the answer to the turn before")
def _(truth: Truth, engine: Any) -> Iterable[Op]:
    mine = [other for other in engine.earlier if other.mark[1:3] == truth.mark[1:3] and other.turn < truth.turn]
    return [json_message(mine[-1].wire() if mine else [])]


# JSON

bytes_of("JSON cut short", lambda body: [message(body[:-25])])
bytes_of("JSON twice", lambda body: [message(body + body)])
bytes_of("JSON that is not UTF-8", lambda body: [message(body.replace(b'"text": ""', b'"text": "\xff\xfe"'))])
bytes_of("a literal NaN", lambda body: [message(body.replace(b"[[-", b"[[NaN, 5, null], [-", 1))])
plain("HTML", message(b"<html><body>Bad gateway</body></html>"))
plain("no body", message(b""))
plain("deep JSON", message(b"[" * 100_000 + b"]" * 100_000))
for _name, _value in {
    "null": None,
    "an empty list": [],
    "a number": 7,
    "a text": "text",
    "an empty object": {},
}.items():
    plain(f"JSON that is {_name}", json_message(_value))

# Tokens


def first(meta: dict[str, Any], **changes: Any) -> None:
    """Change the logprob or id of the first entry."""
    entry = meta["output_token_logprobs"][0]
    entry[0], entry[1] = changes.get("logprob", entry[0]), changes.get("id", entry[1])


wrong("no meta_info", lambda answer, meta: answer.pop("meta_info") and None)
wrong("meta_info of the wrong type", lambda answer, meta: answer.update(meta_info=[1]))
wrong("no logprobs", lambda answer, meta: meta.pop("output_token_logprobs") and None)
wrong("logprobs are null", lambda answer, meta: meta.update(output_token_logprobs=None))
wrong("logprobs are a number", lambda answer, meta: meta.update(output_token_logprobs=3))
for _name, _value in {
    "null": None,
    "a string": "-1.0",
    "positive": 0.25,
    "1e999": 1e999,
    "true": True,
    "a list": [-1.0],
}.items():
    wrong(f"a logprob that is {_name}", lambda answer, meta, value=_value: first(meta, logprob=value))
for _name, _value in {
    "true": True,
    "null": None,
    "a float": 65.5,
    "a string": "65",
    "negative": -3,
    "out of the vocabulary": 10**7,
    "beyond 64 bits": 2**70,
}.items():
    wrong(f"an id that is {_name}", lambda answer, meta, value=_value: first(meta, id=value))
wrong("an entry is missing", lambda answer, meta: meta["output_token_logprobs"].pop(1) and None)
wrong("an entry twice", lambda answer, meta: meta["output_token_logprobs"].insert(1, meta["output_token_logprobs"][1]))
wrong("entries are pairs of nothing", lambda answer, meta: meta.update(output_token_logprobs=[[]] * 3))
wrong("entries are objects", lambda answer, meta: meta.update(output_token_logprobs=[{"id": 1}] * 3))
wrong("output_ids say otherwise", lambda answer, meta: answer.update(output_ids=[66, *answer["output_ids"][1:-1], 67]))
wrong("completion_tokens disagree", lambda answer, meta: meta.update(completion_tokens=meta["completion_tokens"] + 3))
wrong("prompt_tokens disagree", lambda answer, meta: meta.update(prompt_tokens=meta["prompt_tokens"] + 1))
wrong(
    "counts are words", lambda answer, meta: meta.update(completion_tokens="many", prompt_tokens=[], cached_tokens={})
)
wrong(
    "tokens without an end", lambda answer, meta: meta.update(output_token_logprobs=meta["output_token_logprobs"] * 400)
)
wrong("an id of nobody", lambda answer, meta: meta.update(id="nobody"))
wrong("an id that is a number", lambda answer, meta: meta.update(id=7))
wrong("no finish_reason", lambda answer, meta: meta.pop("finish_reason") and None, lie=False)
wrong("a finish_reason of the wrong type", lambda answer, meta: meta.update(finish_reason=[3]), lie=False)
wrong("an unknown finish_reason", lambda answer, meta: meta.update(finish_reason={"type": "tired"}), lie=False)
wrong(
    "aborted for a bad request",
    lambda answer, meta: meta.update(finish_reason={"type": "abort", "status_code": 400, "message": "no"}),
)
wrong(
    "aborted by a fault of the worker",
    lambda answer, meta: meta.update(finish_reason={"type": "abort", "status_code": 503, "message": "no"}),
)
wrong("a weight_version of the wrong type", lambda answer, meta: meta.update(weight_version=["1"]), lie=False)
wrong(
    "an empty output",
    lambda answer, meta: (
        (meta.update(output_token_logprobs=[], completion_tokens=0), answer.update(output_ids=[])) and None
    ),
)

FAULTS["aborted without output"] = Fault(
    "aborted without output",
    lambda truth, engine: [json_message(truth.wire())],
    lie=False,
    times=2,
    shape=lambda truth: truth.cut(0),
)
FAULTS["aborted with a part of the output"] = Fault(
    "aborted with a part of the output",
    lambda truth, engine: [json_message(truth.wire())],
    lie=False,
    times=1,
    shape=lambda truth: truth.cut(3),
)
