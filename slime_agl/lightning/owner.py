"""Identify the attempt that a task or thread works for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Literal
from weakref import WeakSet

from slime_agl.lightning.clock import WorkingClock

Name = tuple[str, str]
State = Literal["running", "left_behind", "over"]


class Owner:
    """An attempt, found through a context variable from every task and thread that runs on its behalf.

    name: rollout id and attempt id. tasks: those that it started on the loop, besides its agent's own.
    state: 'running'; 'left_behind' if its agent continues after the attempt has ended; 'over'.
    started_processes: it may have started some. forks: how many of them this process forked.
    struck: completed, with an error's text and type name, when something other than its agent fails the attempt.
    counts: what its agent counts, for the metrics of the step. seal: refuses its model calls from now on, idempotent.
    clock: stops while the attempt is parked.

    Created on the event loop of the runners; `strike` may be called from any thread.
    """

    def __init__(self, rollout_id: str, attempt_id: str) -> None:
        self.name: Name = (rollout_id, attempt_id)
        self.tasks: WeakSet[asyncio.Task[object]] = WeakSet()
        self.state: State = "running"
        self.started_processes = False
        self.forks = 0
        self.counts: Counter[str] = Counter()
        self.seal: Callable[[], Awaitable[object]] | None = None
        self.clock: WorkingClock | None = None
        self._loop = asyncio.get_running_loop()
        self.struck: asyncio.Future[tuple[str, str]] = self._loop.create_future()

    def __str__(self) -> str:
        return f"attempt {self.name[1]} of rollout {self.name[0]}"

    def strike(self, error: str, error_type: str) -> None:
        """Fail the attempt. Only the first strike counts, and none after its end."""

        def strike() -> None:
            if not self.struck.done():
                self.struck.set_result((error, error_type))

        self._loop.call_soon_threadsafe(strike)


current: ContextVar[Owner | None] = ContextVar("slime_agl_owner", default=None)
