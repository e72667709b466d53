"""Attempts that begin elsewhere: what the gateway asks of whoever knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from slime_agl.gateway.refusal import Refusal

Admission = Literal["open", "unknown", "wrong_key", "over", "unreachable"]


class Doorman(Protocol):
    """Knows the attempts that a store's own runners begin. Called on the gateway's event loop."""

    async def admit(self, rollout_id: str, attempt_id: str, may_enter: Callable[[str], bool]) -> Admission:
        """Open the session of an attempt that has sent its first request, if the store has it and it is the latest.

        may_enter: whether the request may enter a session with this key.
        """
        ...

    async def number(self, rollout_id: str, attempt_id: str, turns: int) -> None:
        """Reserve the places of turns among the spans of their attempt, before their agent sees an answer."""
        ...

    def left(self, rollout_id: str, attempt_id: str) -> None:
        """A request that was numbered has been served."""
        ...


def store_unreachable() -> Refusal:
    return Refusal(
        503,
        "the store that knows this attempt does not answer; try again",
        type="api_error",
        code="store_unavailable",
        retry=True,
    )
