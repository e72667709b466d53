"""A clock that stops while agents are parked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class WorkingClock:
    """Counts the seconds in which agents could work. Belongs to one event loop. now: a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._before = 0.0
        self._since: float | None = now()
        self._running, self._paused = asyncio.Event(), asyncio.Event()
        self._running.set()

    def seconds(self) -> float:
        return self._before + (0.0 if self._since is None else self._now() - self._since)

    @property
    def paused(self) -> bool:
        return self._since is None

    def pause(self) -> None:
        """Stop. Idempotent."""
        self._before, self._since = self.seconds(), None
        self._running.clear()
        self._paused.set()

    def resume(self) -> None:
        """Continue. Idempotent."""
        self._before, self._since = self.seconds(), self._now()
        self._paused.clear()
        self._running.set()

    async def running(self) -> None:
        """Wait until the clock runs."""
        await self._running.wait()

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed on this clock."""
        end = self.seconds() + seconds
        while (left := end - self.seconds()) > 0:
            await self._running.wait()
            try:
                async with asyncio.timeout(left):
                    await self._paused.wait()
            except TimeoutError:
                continue
