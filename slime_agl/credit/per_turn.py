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
    """The credit of each segment: the discounted return at its first trained turn.

    Returns run over the trained turns of all segments in commit order, so that a reward after a subagent's work reaches
    back to the subagent. rewards: the value of each of `emitted`, by dimension. A reward belongs to the last of the
    turns it is linked to, else to the last turn before it; one that precedes every turn belongs to the first. If that
    turn is not trained, the reward goes to the last trained turn before it.

    A Sample has one reward for all its tokens. A segment of several turns therefore counts as one action, taken at its
    first trained turn: it gets what was earned from there on, and nothing earned before. With a discount of 1 and
    rewards only at the end, every segment gets their sum.

    Dimensions are independent; a reward that lacks one adds 0 to it. discount: per turn, 0 to 1.
    """
    if not segments:
        return []
    trained = sorted({index for segment in segments for index in segment.trained})
    places = [place_of(item, trained) for item in emitted]
    returns = {}
    for name in dict.fromkeys(name for values in rewards for name in values):
        earned = [0.0] * len(trained)
        for place, values in zip(places, rewards, strict=True):
            earned[place] += values.get(name, 0.0)
        returns[name] = turn_returns(earned, discount)
    starts = [trained.index(min(segment.trained)) for segment in segments]
    return [{name: values[start] for name, values in returns.items()} for start in starts]


def place_of(item: Emitted, trained: Sequence[int]) -> int:
    """Position in `trained`, ascending turn indices, of the turn that a reward belongs to."""
    turn = item.linked[-1] if item.linked else item.after - 1
    return max(0, bisect_right(trained, turn) - 1)


def turn_returns(rewards: Sequence[float], discount: float) -> list[float]:
    """For each turn: its reward plus the discounted rewards of later turns."""
    returns = []
    follows = 0.0
    for reward in reversed(rewards):
        follows = reward + discount * follows
        returns.append(follows)
    return returns[::-1]
