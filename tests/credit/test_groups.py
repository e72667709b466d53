"""The set of executions that a baseline averages."""

from __future__ import annotations

from typing import Any

import pytest

from slime_agl.credit.groups import GroupValues, Scored, groups_of


def scored(group: int | str, execution: int, reward: float, trained: int, **more: Any) -> Scored:
    return Scored(group=group, execution=execution, reward=reward, trained=trained, **more)


def test_the_example_of_the_documentation():
    same = [scored("g", 0, 1.0, 30), scored("g", 0, 1.0, 10), scored("g", 1, 0.0, 20)]
    assert groups_of(same) == [GroupValues((1.0, 0.0), (0, 1, 2))]
    different = [scored("g", 0, 1.0, 30), scored("g", 0, 0.0, 10), scored("g", 1, 0.0, 20)]
    assert groups_of(different) == [GroupValues((0.75, 0.0), (0, 1, 2), within=0.1875 / 2)]


def test_groups_keep_their_order_and_may_be_interleaved():
    samples = [scored(1, 0, 1.0, 1), scored(0, 1, 2.0, 1), scored(1, 2, 3.0, 1)]
    assert groups_of(samples) == [GroupValues((1.0, 3.0), (0, 2)), GroupValues((2.0,), (1,))]


def test_a_removed_sample_counts_nowhere():
    samples = [
        scored(0, 0, 9.0, 5, removed=True),
        scored(0, 1, 1.0, 2),
        scored(0, 1, 5.0, 0, removed=True),
        scored(1, 2, 4.0, 0, removed=True),
    ]
    assert groups_of(samples) == [GroupValues((1.0,), (1,)), GroupValues((), ())]


def test_an_execution_that_is_masked_counts_with_its_reward():
    samples = [scored(0, 0, 9.0, 0, tokens=3), scored(0, 1, 1.0, 2, tokens=2)]
    assert groups_of(samples) == [GroupValues((9.0, 1.0), (0, 1))]


def test_the_tokens_that_train_weigh_within_an_execution_and_all_of_them_where_none_does():
    half_masked = [scored(0, 0, 1.0, 4, tokens=4), scored(0, 0, 0.0, 0, tokens=4)]
    assert groups_of(half_masked) == [GroupValues((1.0,), (0, 1))]
    masked = [scored(0, 0, 1.0, 0, tokens=3), scored(0, 0, 0.0, 0, tokens=1)]
    assert groups_of(masked) == [GroupValues((0.75,), (0, 1), within=0.1875)]
    empty = [scored(0, 0, 1.0, 0), scored(0, 0, 0.0, 0)]
    assert groups_of(empty) == [GroupValues((0.5,), (0, 1), within=0.25)]


def test_an_execution_of_the_same_number_in_another_group_is_another():
    assert [group.values for group in groups_of([scored(0, 7, 1.0, 1), scored(1, 7, 2.0, 1)])] == [(1.0,), (2.0,)]


def test_equal_rewards_are_not_rounded_by_a_mean():
    samples = [scored(0, 0, 0.1, tokens) for tokens in (1, 1, 1)]
    assert groups_of(samples)[0].values == (0.1,)


def test_advantages_weighted_by_tokens_sum_to_zero():
    samples = [scored(0, 0, 1.0, 30), scored(0, 0, 0.0, 10), scored(0, 1, 0.25, 20), scored(0, 2, -1.0, 5)]
    (group,) = groups_of(samples)
    mean = sum(group.values) / len(group.values)
    per_execution = {0: 40, 1: 20, 2: 5}
    total = sum((s.reward - mean) * s.trained / per_execution[s.execution] for s in samples)
    assert total == pytest.approx(0.0, abs=1e-12)
