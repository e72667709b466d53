"""A reward as the agent gave it, and where in the execution it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Reward = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Emitted:
    """One reward that an agent emitted or returned.

    values: dimension to value, the primary one first; a plain number has the one dimension 'primary'.
    after: how many turns were committed before it, which is its place in time.
    linked: indices of the turns that its link attributes select, ascending; () when it has no link.
    dangling: it has a link, and that selects no turn of this attempt.
    """

    values: Mapping[str, float]
    after: int = 0
    linked: tuple[int, ...] = ()
    dangling: bool = False

    @property
    def reward(self) -> Reward:
        return reward_of(self.values)


def reward_of(values: Mapping[str, float]) -> Reward:
    """The value of a reward with one dimension, all dimensions when there are several."""
    return dict(values) if len(values) > 1 else next(iter(values.values()))


def last_reward(emitted: tuple[Emitted, ...]) -> Reward | None:
    """The reward of the whole execution by Agent Lightning's rule: the last one emitted. None when there is none."""
    return emitted[-1].reward if emitted else None
