"""A reward as the agent gave it, with its place in the execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Emitted"]

Reward = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Emitted:
    """One reward that an agent emitted or returned.

    values: dimension to value, the primary one first; a plain number has the one dimension 'primary'.
    after: number of turns committed before it.
    linked: indices of the turns that its link attributes select, ascending; () without a link.
    dangling: it has a link that selects no turn of this attempt.
    """

    values: Mapping[str, float]
    after: int = 0
    linked: tuple[int, ...] = ()
    dangling: bool = False

    @property
    def reward(self) -> Reward:
        return reward_of(self.values)


def reward_of(values: Mapping[str, float]) -> Reward:
    """The value of a reward with one dimension, or all dimensions of one with several."""
    return dict(values) if len(values) > 1 else next(iter(values.values()))


def last_reward(emitted: tuple[Emitted, ...]) -> Reward | None:
    """The reward of the execution by Agent Lightning's rule: the last one emitted, None without any."""
    return emitted[-1].reward if emitted else None
