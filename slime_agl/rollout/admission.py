"""When groups are started, and which finished group is taken: the two ways to fill a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slime_agl.rollout.pool import Run


class Admission(Protocol):
    """Decides for one step. Counts are groups; `kept` are in the batch, `in_pool` are not yet."""

    def wanted(self, kept: int, in_pool: int) -> int:
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

    def wanted(self, kept: int, in_pool: int) -> int:
        return self.fetch if kept + in_pool < self.target else 0

    def may_wait(self, kept: int, place: int, run: Run) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Ahead:
    """Work of the next `ahead` steps may start now; no group enters a batch more than `staleness` steps after it began.

    Groups are admitted up to (ahead + 1) batches, and begin in order, as there is room. A group that began in step s
    is due in step s + staleness, one that waits for room is not due before `staleness` steps from now; one batch fits into each step, so the group at place i from the oldest has to enter
    this batch unless i < (groups this batch still needs) + (steps until it is due) * target, less one for
    the younger group that would go first. That keeps the bound for all: nothing is thrown away for its age.
    """

    target: int
    step: int
    staleness: int
    ahead: int

    def wanted(self, kept: int, in_pool: int) -> int:
        return max(0, (self.ahead + 1) * self.target - kept - in_pool)

    def may_wait(self, kept: int, place: int, run: Run) -> bool:
        steps_left = self.staleness - run.age(self.step)
        return place + 1 < self.target - kept + steps_left * self.target
