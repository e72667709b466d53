"""What becomes of the groups that a batch does not need: put back, parked, or left to go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slime_agl.errors import InvariantError
from slime_agl.rollout.executions import Entry
from slime_agl.rollout.pool import Pool, Run
from slime_agl.rollout.tally import Tally
from slime_agl.runtime import Runtime


class Ending(Protocol):
    """The end of a step, and the beginning of the next one."""

    async def begin(self, step: int) -> None:
        """Make what earlier steps left go on. Called before anything else in a step."""

    async def end(self, step: int) -> list[list[Entry]]:
        """The batch is full. Returns the finished groups that will not be delivered."""
        ...

    def count(self, tally: Tally, ages: Sequence[int], seconds: float) -> None:
        """Put this way's own numbers into the metrics. ages: steps from start to delivery, of each group delivered."""


class PutBack:
    """Sealed, aborted, cancelled, and back to the data source; the engine is idle when `end` returns."""

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self._runtime, self._pool = runtime, pool
        self._put_back = self._lost = 0

    async def begin(self, step: int) -> None:
        """Nothing was left."""

    async def end(self, step: int) -> list[list[Entry]]:
        runs = await self._pool.end_all()
        if runs:
            if self._pool.put_back(run.group for run in runs):
                self._put_back = len(runs)
            else:
                self._lost = len(runs)
        await self._runtime.quiet()
        return _results(runs)

    def count(self, tally: Tally, ages: Sequence[int], seconds: float) -> None:
        tally.count("put_back_groups", self._put_back)
        tally.count("dropped_groups/over_sampled", self._lost)


def _results(runs: Sequence[Run]) -> list[list[Entry]]:
    """What has finished. Raises InvariantError when a group found one broken; other errors ended with their group."""
    results = []
    for run in runs:
        error = None if run.task.cancelled() else run.task.exception()
        if isinstance(error, InvariantError):
            raise error
        if error is None and not run.task.cancelled():
            results.append(run.task.result())
    return results


class Park:
    """Held until the next step, agents alive; the engine is idle when `end` returns."""

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self._runtime, self._pool = runtime, pool

    async def begin(self, step: int) -> None:
        await self._runtime.resume()

    async def end(self, step: int) -> list[list[Entry]]:
        await self._runtime.park()
        await self._runtime.quiet()
        return []

    def count(self, tally: Tally, ages: Sequence[int], seconds: float) -> None:
        tally.count("parked_groups", len(self._pool))
        tally.count("resumed_groups", sum(age > 0 for age in ages))


class GoOn:
    """Left alone: agents go on while the trainer trains."""

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
