"""Active groups, from the data source to a batch, across the steps of a run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from slime_agl.errors import HostError
from slime_agl.executor.entry import Entry
from slime_agl.host import Sample
from slime_agl.loops import Work, ended
from slime_agl.outstanding import Outstanding

logger = logging.getLogger(__name__)

Group = list[Sample]
# True if younger groups may overtake the one at this place, counted from the oldest.
MayWait = Callable[[int, "ActiveGroup"], bool]


@dataclass(eq=False, slots=True)
class ActiveGroup:
    """A group that has been admitted and is in no batch yet, finished or not.

    group: the data source's own samples, which nothing changes. step: the step in which the first of its executions
    began; None while all of them wait for a slot.
    """

    group: Group
    step: int | None = None
    task: asyncio.Task[list[Entry]] = field(init=False)

    def begin(self, step: int) -> None:
        """One of its executions has begun. step: the latest one; between two steps, the earlier."""
        if self.step is None:
            self.step = step

    def age(self, step: int) -> int:
        """Steps between its beginning and `step`."""
        return 0 if self.step is None else step - self.step


class Pool:
    """Owns all groups between data source and batch, oldest first. Used on the runtime's event loop."""

    def __init__(self, outstanding: Outstanding) -> None:
        self.active: list[ActiveGroup] = []
        self.largest: int | None = None  # bytes of the largest group that has finished so far
        self._outstanding = outstanding
        self._source: Any = None
        self._idle_since: float | None = time.monotonic()
        self._idle_seconds = 0.0

    def __len__(self) -> int:
        return len(self.active)

    @property
    def waiting(self) -> int:
        """Number of groups that have finished and are in no batch yet."""
        return sum(one.task.done() for one in self.active)

    @property
    def nbytes(self) -> int:
        """Bytes of the groups that have finished and are in no batch yet (see Entry)."""
        return sum(nbytes_of(one) for one in self.active)

    @property
    def under_way(self) -> int:
        return len(self.active) - self.waiting

    def slow(self, step: int) -> int:
        """Number of groups that began before `step` and have not finished."""
        return sum(one.age(step) > 0 and not one.task.done() for one in self.active)

    def take_idle_seconds(self) -> float:
        """Seconds since the last call in which no group was running."""
        self._count_idle()
        seconds, self._idle_seconds = self._idle_seconds, 0.0
        return seconds

    def fetch(self, source: Any, count: int) -> list[Group]:
        """Take groups from the data source; fewer or none if it is exhausted."""
        self._source = source
        groups = source.get_samples(count) or []
        self._outstanding.take(groups)
        return groups

    def start(self, group: Group, work: Callable[[ActiveGroup], Work[list[Entry]]]) -> ActiveGroup:
        """Run the work of a fetched group; the work reports when it begins."""
        self._count_idle()
        active = ActiveGroup(group)
        active.task = asyncio.ensure_future(work(active))
        active.task.add_done_callback(lambda _: self._note_end(active))
        self.active.append(active)
        return active

    def _note_end(self, active: ActiveGroup) -> None:
        self._count_idle()
        if not active.task.cancelled() and active.task.exception() is None:
            self.largest = max(self.largest or 0, nbytes_of(active))

    async def next(self, may_wait: MayWait) -> ActiveGroup:
        """Wait for the oldest finished group, passing over older unfinished ones that may wait.

        It stays in the pool until removed. Its task's result raises what its work raised.

        Raises:
            HostError: no group is left to wait for.
        """
        while self.active:
            for place, active in enumerate(self.active):
                if active.task.done():
                    return active
                if not may_wait(place, active):
                    break
            pending = [one.task for one in self.active if not one.task.done()]
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        raise HostError("the data source gave no more groups, and none is under way; give it more rows")

    def remove(self, active: ActiveGroup) -> None:
        """Remove a group that was kept or dropped."""
        self.active.remove(active)

    async def end_all(self) -> list[ActiveGroup]:
        """End running groups, empty the pool, and return all groups, finished or not.

        Their errors are not reported: one error has already ended the step.
        """
        all_active, self.active = self.active, []
        await ended([one.task for one in all_active])
        return all_active

    def put_back(self, groups: Iterable[Group]) -> bool:
        """Return groups to the data source. False if it is read-only, and the groups are lost to it."""
        groups = list(groups)
        self._outstanding.forget(groups)
        try:
            self._source.add_samples(groups)
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            # The data source is read-only.
            logger.warning("%d unused groups could not be put back: %s", len(groups), error)
            return False
        return True

    async def close(self) -> None:
        """End running groups and put all groups back."""
        if groups := [one.group for one in await self.end_all()]:
            self.put_back(groups)

    def _count_idle(self) -> None:
        now = time.monotonic()
        if self._idle_since is not None:
            self._idle_seconds += now - self._idle_since
        self._idle_since = None if self.under_way else now


def nbytes_of(active: ActiveGroup) -> int:
    """Bytes of a group's entries; 0 until it has finished, or if it failed."""
    task = active.task
    if not task.done() or task.cancelled() or task.exception() is not None:
        return 0
    return sum(entry.nbytes for entry in task.result())
