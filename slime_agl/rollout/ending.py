"""Handle the groups that a batch does not need: put back (sync), parked (partial), or left running (async)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slime_agl.errors import InvariantError
from slime_agl.executor.entry import Entry
from slime_agl.rollout.pool import ActiveGroup, Pool
from slime_agl.rollout.tally import Tally
from slime_agl.runtime import Runtime


class Ending(Protocol):
    """The end of a step, and the beginning of the next one."""

    async def begin(self, step: int) -> None:
        """Look at what earlier steps left. Called before groups start."""

    async def end(self, step: int) -> list[list[Entry]]:
        """Handle the rest once the batch is full. Returns the finished groups that will not be delivered."""
        ...

    def count(self, tally: Tally, ages: Sequence[int], seconds: float) -> None:
        """Add this mode's own metrics. ages: steps from start to delivery, per delivered group."""


class PutBack:
    """Seal, abort, cancel, and put back into the data source; the engine is idle when `end` returns."""

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self._runtime, self._pool = runtime, pool
        self._put_back = self._lost = 0

    async def begin(self, step: int) -> None:
        """Nothing to resume."""

    async def end(self, step: int) -> list[list[Entry]]:
        active = await self._pool.end_all()
        if active:
            if self._pool.put_back(one.group for one in active):
                self._put_back = len(active)
            else:
                self._lost = len(active)
        await self._runtime.quiet()
        return _results(active)

    def count(self, tally: Tally, ages: Sequence[int], seconds: float) -> None:
        tally.count("put_back_groups", self._put_back)
        tally.count("dropped_groups/over_sampled", self._lost)


def _results(active: Sequence[ActiveGroup]) -> list[list[Entry]]:
    """Entries of the groups that finished. Raises a group's InvariantError; other errors end with their group."""
    results = []
    for one in active:
        error = None if one.task.cancelled() else one.task.exception()
        if isinstance(error, InvariantError):
            raise error
        if error is None and not one.task.cancelled():
            results.append(one.task.result())
    return results


class Park:
    """Pause until the next step with agents alive; the engine is idle when `end` returns."""

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self._runtime, self._pool = runtime, pool

    async def begin(self, step: int) -> None:
        """No-op: every step resumes what is parked."""

    async def end(self, step: int) -> list[list[Entry]]:
        await self._runtime.park()
        await self._runtime.quiet()
        return []

    def count(self, tally: Tally, ages: Sequence[int], seconds: float) -> None:
        tally.count("parked_groups", len(self._pool))
        tally.count("resumed_groups", sum(age > 0 for age in ages))


class GoOn:
    """Leave agents running while the trainer trains."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting = self._under_way = 0
        self._idle = 0.0

    async def begin(self, step: int) -> None:
        self._waiting, self._under_way = self._pool.waiting, self._pool.under_way
        self._idle = self._pool.take_idle_seconds()

    async def end(self, step: int) -> list[list[Entry]]:
        return []

    def count(self, tally: Tally, ages: Sequence[int], seconds: float) -> None:
        tally.put("async/staleness_mean", sum(ages) / len(ages))
        tally.put("async/staleness_max", max(ages))
        tally.put("async/queue_depth", self._waiting)
        tally.put("async/under_way", self._under_way)
        tally.put("async/idle_seconds", self._idle)
        tally.put("async/wait_seconds", seconds)
