"""The values behind a group's mean and standard deviation when executions gave several Samples.

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

Masked is not absent: an execution of which nothing trains, because older weights sampled it, has earned its reward all
the same and counts with it. Only a removed Sample, such as the placeholder of a failed execution, counts nowhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The facts of one Sample that normalisation needs.

    tokens: of its response; trained: those that train. removed: slime leaves it out of training (`remove_sample`).
    """

    group: Hashable
    execution: Hashable
    reward: float
    trained: int
    tokens: int = 0
    removed: bool = False


@dataclass(frozen=True, slots=True)
class GroupValues:
    """One group.

    values: one per execution that counts, in order. members: positions of their Samples that are not removed.
    within: mean over these executions of the variance of reward over an execution's tokens; 0.0 if each has one reward.
    """

    values: tuple[float, ...]
    members: tuple[int, ...]
    within: float = 0.0


def groups_of(samples: Sequence[Scored]) -> list[GroupValues]:
    """Groups in order of appearance, each execution counted once.

    An execution's value is the mean of its Samples' rewards weighted by trained tokens, or by all response tokens if
    none trains. Removed Samples count nowhere and are not members; a group with only such Samples has no values.
    """
    by_group: dict[Hashable, dict[Hashable, list[int]]] = {}
    for at, sample in enumerate(samples):
        executions = by_group.setdefault(sample.group, {})
        if not sample.removed:
            executions.setdefault(sample.execution, []).append(at)
    return [_group(samples, list(executions.values())) for executions in by_group.values()]


def _group(samples: Sequence[Scored], executions: list[list[int]]) -> GroupValues:
    whole = [[samples[at] for at in members] for members in executions]
    values = tuple(_value(one) for one in whole)
    variances = [_variance(one, value) for one, value in zip(whole, values, strict=True)]
    return GroupValues(
        values=values,
        members=tuple(at for members in executions for at in members),
        within=sum(variances) / len(variances) if variances else 0.0,
    )


def _variance(samples: Sequence[Scored], mean: float) -> float:
    return _mean(samples, [(sample.reward - mean) ** 2 for sample in samples])


def _value(samples: Sequence[Scored]) -> float:
    first = samples[0].reward
    if all(sample.reward == first for sample in samples):
        return first  # as it is: a mean would round it
    return _mean(samples, [sample.reward for sample in samples])


def _mean(samples: Sequence[Scored], values: Sequence[float]) -> float:
    for weights in ([sample.trained for sample in samples], [sample.tokens for sample in samples]):
        if total := sum(weights):
            return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total
    return sum(values) / len(values)
