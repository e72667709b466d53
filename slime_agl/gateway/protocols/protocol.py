"""What a protocol is to the HTTP surface: it reads bodies, writes answers and words errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from slime_agl.gateway.bodies import json_bytes
from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.request import TurnAnswer, TurnRequest
from slime_agl.gateway.sessions.session import Session

KEEP_ALIVE = b": keep-alive\n\n"


class Exchange(Protocol):
    """One request, read. turns: what is to be sampled; their answers come back in this order, n for each."""

    turns: tuple[TurnRequest, ...]
    stream: bool

    def body(self, answers: list[TurnAnswer]) -> dict[str, Any]:
        """The answer as one body. Called again for a retry, it says the same."""
        ...

    def events(self, answers: list[TurnAnswer]) -> Iterable[bytes]:
        """The answer as server-sent events, to the last."""
        ...


class Dialect(Protocol):
    """A protocol that agents speak."""

    def read(self, body: Any, session: Session) -> Exchange:
        """Check a request body.

        Raises:
            Refusal: 400, naming the field, before anything is sampled.
        """
        ...

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """The body of an error."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """An error after a stream has begun."""
        ...


def event(body: Any, name: str = "") -> bytes:
    """One server-sent event."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + json_bytes(body) + b"\n\n"


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error object, the same in all of its protocols."""
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return {"error": error}
