"""Groups under way, across the steps of a run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from slime_agl.errors import HostError
from slime_agl.host import Sample
from slime_agl.outstanding import Outstanding
from slime_agl.rollout.executions import Entry, ended

logger = logging.getLogger(__name__)

Group = list[Sample]
# Whether the group at this place, from the oldest, may let younger ones go first.
MayWait = Callable[[int, "Run"], bool]


@dataclass(eq=False, slots=True)
class Run:
    """A group that was admitted. group: the data source's own samples, which nothing changes.

    step: the step in which the first of its executions began; None while all of them wait for room.
    """

    group: Group
    step: int | None = None
    task: asyncio.Task[list[Entry]] = field(init=False)

    def begin(self, step: int) -> None:
        """One of its executions has begun. step: the latest one; between two, what begins counts for the one that was."""
        if self.step is None:
            self.step = step

    def age(self, step: int) -> int:
        """Steps from its beginning to `step`."""
        return 0 if self.step is None else step - self.step


class Pool:
    """Owner of all groups between data source and batch, oldest first. Lives on the runtime's event loop."""

    def __init__(self, outstanding: Outstanding) -> None:
        self.runs: list[Run] = []
        self._outstanding = outstanding
        self._source: Any = None
        self._idle_since: float | None = time.monotonic()
        self._idle_seconds = 0.0

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def waiting(self) -> int:
        """Groups that have finished and are in no batch yet."""
        return sum(run.task.done() for run in self.runs)

    @property
    def under_way(self) -> int:
        return len(self.runs) - self.waiting

    def slow(self, step: int) -> int:
        """Groups that began before `step` and have not finished."""
        return sum(run.age(step) > 0 and not run.task.done() for run in self.runs)

    def take_idle_seconds(self) -> float:
        """Seconds in which no group was under way, since this was asked last."""
        self._count_idle()
        seconds, self._idle_seconds = self._idle_seconds, 0.0
        return seconds

    def fetch(self, source: Any, count: int) -> list[Group]:
        """Take groups from the data source; fewer, or none, when it is exhausted."""
        self._source = source
        groups = source.get_samples(count) or []
        self._outstanding.take(groups)
        return groups

    def start(self, group: Group, work: Callable[[Run], Coroutine[Any, Any, list[Entry]]]) -> Run:
        """Run the work of a group that was fetched; the work says when it begins."""
        self._count_idle()
        run = Run(group)
        run.task = asyncio.ensure_future(work(run))
        run.task.add_done_callback(lambda _: self._count_idle())
        self.runs.append(run)
        return run

    async def next(self, may_wait: MayWait) -> Run:
        """The oldest group that has finished; older ones that have not are passed over while they may wait.

        It stays in the pool until it is removed. What its work raised is raised by its task's result.

        Raises:
            HostError: no group is left to wait for.
        """
        while self.runs:
            for place, run in enumerate(self.runs):
                if run.task.done():
                    return run
                if not may_wait(place, run):
                    break
            pending = [run.task for run in self.runs if not run.task.done()]
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        raise HostError("the data source gave no more groups, and none is under way; give it more rows")

    def remove(self, run: Run) -> None:
        """A finished group has found its place, or was dropped."""
        self.runs.remove(run)

    async def end_all(self) -> list[Run]:
        """End what is under way, and return all groups, finished or not; the pool is empty then.

        What a group raised that nobody asked for is not told again: one error has ended the step.
        """
        runs, self.runs = self.runs, []
        await ended([run.task for run in runs])
        return runs

    def put_back(self, groups: Iterable[Group]) -> bool:
        """Give groups back to the data source; False when it takes none back, and they are lost to it."""
        groups = list(groups)
        self._outstanding.forget(groups)
        try:
            self._source.add_samples(groups)
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            # A read-only data source.
            logger.warning("%d unused groups could not be put back: %s", len(groups), error)
            return False
        return True

    async def close(self) -> None:
        """End what is under way, and put all groups back."""
        if groups := [run.group for run in await self.end_all()]:
            self.put_back(groups)

    def _count_idle(self) -> None:
        now = time.monotonic()
        if self._idle_since is not None:
            self._idle_seconds += now - self._idle_since
        self._idle_since = None if self.under_way else now
