"""What a group's mean and standard deviation are taken over, when executions gave several Samples.

A worked example. Two executions of one group; the first gave two Samples, with 30 and 10 trained tokens:

    execution    reward     trained tokens    value in the baseline
    0            1.0, 1.0   30, 10            1.0                             once, not twice
    1            0.0        20                0.0

The baseline is 0.5, and the advantages (without a standard deviation) are 0.5, 0.5 and -0.5. When the two Samples of
execution 0 carry different credit, 1.0 and 0.0, the execution counts with their mean over trained tokens, 0.75; the
baseline is 0.375, and the advantages are 0.625, -0.375 and -0.375. The difference of 1.0 between the two stays, and
as slime averages the loss of an execution over its tokens, the group's advantages still sum to zero.

What scales them is the spread of both kinds: between executions, 0.53 (the unbiased standard deviation of 0.75 and 0),
and within them, the mean over executions of the variance over trained tokens, here (0.1875 + 0) / 2. Were it the first
alone, two executions that earn the same would have no spread, and their Samples' differences would be divided by it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scored:
    """What normalising needs of one Sample. trained: its trained tokens, 0 for a masked placeholder."""

    group: Hashable
    execution: Hashable
    reward: float
    trained: int


@dataclass(frozen=True, slots=True)
class Group:
    """One group.

    values: of each of its executions that counts, in order. members: positions of their trained Samples.
    within: mean over these executions of the variance of reward over an execution's trained tokens; 0.0 when each has
    one reward.
    """

    values: tuple[float, ...]
    members: tuple[int, ...]
    within: float = 0.0


def groups_of(samples: Sequence[Scored]) -> list[Group]:
    """Groups in order of appearance, with every execution counted once.

    An execution's value is the mean of its Samples' rewards, weighted by trained tokens. Samples without a trained
    token count nowhere and are no members; a group of such Samples only has no values.
    """
    held: dict[Hashable, dict[Hashable, list[int]]] = {}
    for at, sample in enumerate(samples):
        executions = held.setdefault(sample.group, {})
        if sample.trained:
            executions.setdefault(sample.execution, []).append(at)
    return [_group(samples, list(executions.values())) for executions in held.values()]


def _group(samples: Sequence[Scored], executions: list[list[int]]) -> Group:
    held = [[samples[at] for at in members] for members in executions]
    values = tuple(_value(one) for one in held)
    variances = [_variance(one, value) for one, value in zip(held, values, strict=True)]
    return Group(
        values=values,
        members=tuple(at for members in executions for at in members),
        within=sum(variances) / len(variances) if variances else 0.0,
    )


def _variance(samples: Sequence[Scored], mean: float) -> float:
    total = sum(sample.trained for sample in samples)
    return sum(sample.trained * (sample.reward - mean) ** 2 for sample in samples) / total


def _value(samples: Sequence[Scored]) -> float:
    first = samples[0].reward
    if all(sample.reward == first for sample in samples):
        return first  # as it is: a mean would round it
    return sum(sample.reward * sample.trained for sample in samples) / sum(sample.trained for sample in samples)
