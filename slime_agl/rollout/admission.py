"""Two ways to fill a batch: when to start groups, and which finished group to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from slime_agl.rollout.pool import ActiveGroup


class Admission(Protocol):
    """Decides for one step. Counts are groups: `kept` are in the batch, `in_pool` are not yet.

    slow: groups in the pool that began in an earlier step and have not finished.
    """

    def wanted(self, kept: int, in_pool: int, slow: int) -> int:
        """Return how many groups to request from the data source now."""
        ...

    def may_wait(self, kept: int, place: int, active: ActiveGroup) -> bool:
        """Return True if a younger group may enter the batch before this one. place: counted from the oldest."""
        ...


@dataclass(frozen=True, slots=True)
class Batchwise:
    """slime's way: request `fetch` groups while batch and pool have fewer than `target`; take what finishes first."""

    target: int
    fetch: int

    def wanted(self, kept: int, in_pool: int, slow: int) -> int:
        return self.fetch if kept + in_pool < self.target else 0

    def may_wait(self, kept: int, place: int, active: ActiveGroup) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Ahead:
    """Start work for later steps now; no group enters a batch more than `staleness` steps after it began.

    left: number of later steps. Fresh groups are admitted for this batch and the next one; slow groups do not count
    towards that, but all together never exceed `staleness` batches beyond this one.

    Staleness is bounded by admission, not by discarding finished work. Groups begin in order as slots become free. A
    group that began in step s is due in step s + staleness; one that still waits for a slot is due no earlier than
    `staleness` steps from now. Each step delivers one batch, so the group at place i (0 = oldest) can be overtaken only
    if all groups up to it, plus the one that overtakes, fit into this batch and those until it is due:
    i + 1 < (groups this batch still needs) + (steps until it is due) * target.
    """

    target: int
    step: int
    staleness: int
    left: int

    def wanted(self, kept: int, in_pool: int, slow: int) -> int:
        fresh = (1 + min(1, self.staleness, self.left)) * self.target - (in_pool - slow)
        in_all = (1 + min(self.staleness, self.left)) * self.target - in_pool
        return max(0, min(fresh, in_all) - kept)

    def may_wait(self, kept: int, place: int, active: ActiveGroup) -> bool:
        steps_left = self.staleness - active.age(self.step)
        return place + 1 < self.target - kept + steps_left * self.target


class Held(NamedTuple):
    """Memory of groups, in bytes. kept: in this batch. waiting: finished and in none yet.

    under_way: groups that run. largest: bytes of the largest group that has finished so far, None before the first.
    """

    kept: int
    waiting: int
    under_way: int
    largest: int | None


@dataclass(frozen=True, slots=True)
class Bounded:
    """Another admission that starts a group only if it fits into `most` bytes beside those that are held and run.

    A group that runs counts as the largest one so far; until one has finished, no more than `batch` groups run. A batch
    has to become full, so if nothing runs any more, groups start one by one however much is held.
    """

    inner: Admission
    most: int
    batch: int
    held: Callable[[], Held]
    warn: Callable[[str], None]

    def wanted(self, kept: int, in_pool: int, slow: int) -> int:
        count = self.inner.wanted(kept, in_pool, slow)
        if not count:
            return 0
        held = self.held()
        if held.kept >= self.most:
            self.warn(
                "the groups of a batch hold more bytes of replay data and images than agl.workers.held_bytes "
                f"({self.most}) before it is full; they start one by one from there. Raise it if memory allows"
            )
        if held.largest == 0:
            return count
        if held.largest is None:
            room = self.batch - held.under_way
        else:
            room = (self.most - held.kept - held.waiting) // held.largest - held.under_way
        return min(count, max(room, 0 if held.under_way else 1))

    def may_wait(self, kept: int, place: int, active: ActiveGroup) -> bool:
        return self.inner.may_wait(kept, place, active)
