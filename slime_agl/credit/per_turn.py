"""Rewards that belong to turns, as discounted returns.

A worked example. An execution has three turns; the first two make one segment, the third another. The agent emits
1.0 after turn 0, nothing after turn 1, and returns 4.0 in the end. With a discount of 0.5:

    turn      0      1      2
    reward    1      0      4
    return    2      2      4      (return = reward + 0.5 * return of the next turn)

so the first segment's Sample gets 2.0 and the second's 4.0.

>>> turn_returns([1.0, 0.0, 4.0], discount=0.5)
[2.0, 2.0, 4.0]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from slime_agl.credit.emitted import Emitted
from slime_agl.trace.segments import Segment


def per_turn(
    emitted: Sequence[Emitted], rewards: Sequence[Mapping[str, float]], segments: Sequence[Segment], *, discount: float
) -> list[dict[str, float]]:
    """The credit of each segment: the discounted return at the first turn that trains in it.

    The steps of an execution are its trained turns in commit order, over all segments, so that a reward after a
    subagent's work reaches back to the subagent. rewards: what each of `emitted` is worth, by dimension.
    A reward belongs to the last of the turns it is linked to, else to the last turn before it; one that comes before
    every turn belongs to the first. Turns that do not train are no steps: a reward that belongs to one goes to the
    last step before it.

    A Sample has one reward for all of its tokens. When its segment holds several turns the segment counts as one
    action, taken at its first trained turn: it gets what was earned from there on, and no turn is rewarded for what
    came before the segment. With a discount of 1 and rewards in the end only, every segment gets their sum.

    Each dimension is counted by itself; a reward that lacks a dimension adds 0 to it. discount: 0 to 1, a turn.
    """
    if not segments:
        return []
    steps = sorted({index for segment in segments for index in segment.trained})
    places = [step_of(item, steps) for item in emitted]
    returns = {}
    for name in dict.fromkeys(name for values in rewards for name in values):
        earned = [0.0] * len(steps)
        for place, values in zip(places, rewards, strict=True):
            earned[place] += values.get(name, 0.0)
        returns[name] = turn_returns(earned, discount)
    starts = [steps.index(min(segment.trained)) for segment in segments]
    return [{name: values[start] for name, values in returns.items()} for start in starts]


def step_of(item: Emitted, steps: Sequence[int]) -> int:
    """Position in `steps`, which are turn indices in ascending order, of the step that a reward belongs to."""
    turn = item.linked[-1] if item.linked else item.after - 1
    return max(0, bisect_right(steps, turn) - 1)


def turn_returns(rewards: Sequence[float], discount: float) -> list[float]:
    """For each turn: its reward, and the discounted rewards of those after it."""
    returns = []
    follows = 0.0
    for reward in reversed(rewards):
        follows = reward + discount * follows
        returns.append(follows)
    return returns[::-1]
