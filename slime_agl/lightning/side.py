"""The interface of what runs agents: this process's own runners, or those of a store elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from slime_agl.lightning.attempts import AttemptPort
from slime_agl.lightning.outcome import Lane, RolloutOutcome


class Port(AttemptPort, Protocol):
    """The port of one rollout.

    key: opens the sessions of all its attempts, where agents get their key before their attempt exists.
    """

    @property
    def key(self) -> str: ...

    def cut_by(self, sealed: Any) -> str:
        """Return the code of the refused call that ended an attempt, as far as its session tells; '' if none did."""
        ...


class LightningSide(Protocol):
    """Agent Lightning's part of a runtime, on the event loop that calls `start`; see `service` and `external`."""

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Make the event loop to start this on."""
        ...

    async def start(self, *, hopeless: Callable[[str], None] = lambda reason: None) -> None:
        """Start. hopeless: called from another thread with why this loop will never run again."""
        ...

    def exited(self, error: BaseException) -> None:
        """Handle SystemExit or KeyboardInterrupt from the event loop. Called on its thread, between two rounds."""
        ...

    async def pause(self, lane: Lane) -> None:
        """Stop the deadlines of a lane, and start no more of its agents where this side starts them."""
        ...

    async def resume(self, lane: Lane) -> None:
        """End a pause."""
        ...

    async def close(self) -> None:
        """Cancel what runs. Idempotent; may be called without `start`."""
        ...

    async def publish(self, step: int, *, endpoint: str, model: str, sampling_parameters: Mapping[str, object]) -> str:
        """Publish the resources of a step; returns their id, for `run`. endpoint: `http://host:port/v1`."""
        ...

    async def run(
        self, task: object, *, lane: Lane, resources_id: str, port: Port, max_attempts: int | None = None
    ) -> RolloutOutcome:
        """Run one rollout to its end. Cancelling seals its session and gives it up.

        Raises:
            SlimeAglError: the resources are not published; the store is lost.
        """
        ...

    def take_ended(self) -> list[str]:
        """Rollouts that have ended since the last call, cancelled ones included; `release` them later."""
        ...

    async def release(self, rollout_ids: Iterable[str]) -> None:
        """Forget finished rollouts, where the store can."""
        ...

    async def metrics(self) -> dict[str, float]:
        """Counts since `start`, and the present size of the store."""
        ...
