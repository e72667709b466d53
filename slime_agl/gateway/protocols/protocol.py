"""The interface of a protocol to the HTTP layer: read bodies, write answers and errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from slime_agl.gateway.bodies import json_bytes
from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.repeats import Frame
from slime_agl.gateway.request import TurnAnswer, TurnRequest
from slime_agl.gateway.sessions.session import Session

KEEP_ALIVE = b": keep-alive\n\n"


class Exchange(Protocol):
    """A parsed request."""

    @property
    def turns(self) -> tuple[TurnRequest, ...]:
        """The turns to sample. Answers come back in this order, n per turn."""
        ...

    @property
    def stream(self) -> bool: ...

    def body(self, answers: list[TurnAnswer]) -> dict[str, Any]:
        """The answer as one body, the same again for a retry."""
        ...

    def events(self, answers: list[TurnAnswer]) -> Iterable[bytes]:
        """The answer as server-sent events, including the final one."""
        ...


class Dialect(Protocol):
    """A protocol that agents use.

    array: the field of a body in which a conversation grows from request to request, '' without one.
    """

    array: str

    def read(self, body: object, session: Session, frame: Frame | None = None) -> Exchange:
        """Parse and check a request body. frame: see `Repeats`; None if the body has none.

        Raises:
            Refusal: 400, naming the field.
        """
        ...

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """The body of an error answer."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """The event for an error after the stream has begun."""
        ...


def event(body: object, name: str = "") -> bytes:
    """Encode a server-sent event."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + json_bytes(body) + b"\n\n"


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error object, shared by its protocols."""
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return {"error": error}
