"""When groups are started, and which finished group is taken: the two ways to fill a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slime_agl.rollout.pool import Run


class Admission(Protocol):
    """Decides for one step. Counts are groups; `kept` are in the batch, `in_pool` are not yet.

    slow: those in the pool that began in an earlier step and have not finished.
    """

    def wanted(self, kept: int, in_pool: int, slow: int) -> int:
        """How many groups to ask the data source for now."""
        ...

    def may_wait(self, kept: int, place: int, run: Run) -> bool:
        """Whether the group at `place` from the oldest may let a younger one into the batch first."""
        ...


@dataclass(frozen=True, slots=True)
class Batchwise:
    """slime's way: start `fetch` groups whenever fewer are in play than the batch needs, take what finishes first."""

    target: int
    fetch: int

    def wanted(self, kept: int, in_pool: int, slow: int) -> int:
        return self.fetch if kept + in_pool < self.target else 0

    def may_wait(self, kept: int, place: int, run: Run) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Ahead:
    """Work of later steps may start now; no group enters a batch more than `staleness` steps after it began.

    left: later steps that there are. Groups are admitted up to this batch and the next, so that they are fresh when
    they are delivered; slow ones come on top of that, up to `staleness` batches beyond this one in all.

    Groups begin in order, as there is room. A group that began in step s is due in step s + staleness, one that waits
    for room not before `staleness` steps from now. One batch fits into each step, so the group at place i from the
    oldest has to enter this batch unless i < (groups this batch still needs) + (steps until it is due) * target, less
    one for the younger group that would go first. That keeps the bound for all: nothing is thrown away for its age.
    """

    target: int
    step: int
    staleness: int
    left: int

    def wanted(self, kept: int, in_pool: int, slow: int) -> int:
        fresh = (1 + min(1, self.staleness, self.left)) * self.target - (in_pool - slow)
        in_all = (1 + min(self.staleness, self.left)) * self.target - in_pool
        return max(0, min(fresh, in_all) - kept)

    def may_wait(self, kept: int, place: int, run: Run) -> bool:
        steps_left = self.staleness - run.age(self.step)
        return place + 1 < self.target - kept + steps_left * self.target
