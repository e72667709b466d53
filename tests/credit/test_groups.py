"""The set of executions that a baseline averages."""

from __future__ import annotations

import pytest

from slime_agl.credit.groups import Group, Scored, groups_of


def test_the_example_of_the_documentation():
    same = [Scored("g", 0, 1.0, 30), Scored("g", 0, 1.0, 10), Scored("g", 1, 0.0, 20)]
    assert groups_of(same) == [Group((1.0, 0.0), (0, 1, 2))]
    different = [Scored("g", 0, 1.0, 30), Scored("g", 0, 0.0, 10), Scored("g", 1, 0.0, 20)]
    assert groups_of(different) == [Group((0.75, 0.0), (0, 1, 2), within=0.1875 / 2)]


def test_groups_keep_their_order_and_may_be_interleaved():
    samples = [Scored(1, 0, 1.0, 1), Scored(0, 1, 2.0, 1), Scored(1, 2, 3.0, 1)]
    assert groups_of(samples) == [Group((1.0, 3.0), (0, 2)), Group((2.0,), (1,))]


def test_a_removed_sample_counts_nowhere():
    samples = [
        Scored(0, 0, 9.0, 5, removed=True),
        Scored(0, 1, 1.0, 2),
        Scored(0, 1, 5.0, 0, removed=True),
        Scored(1, 2, 4.0, 0, removed=True),
    ]
    assert groups_of(samples) == [Group((1.0,), (1,)), Group((), ())]


def test_an_execution_that_is_masked_counts_with_its_reward():
    samples = [Scored(0, 0, 9.0, 0, tokens=3), Scored(0, 1, 1.0, 2, tokens=2)]
    assert groups_of(samples) == [Group((9.0, 1.0), (0, 1))]


def test_the_tokens_that_train_weigh_within_an_execution_and_all_of_them_where_none_does():
    half_masked = [Scored(0, 0, 1.0, 4, tokens=4), Scored(0, 0, 0.0, 0, tokens=4)]
    assert groups_of(half_masked) == [Group((1.0,), (0, 1))]
    masked = [Scored(0, 0, 1.0, 0, tokens=3), Scored(0, 0, 0.0, 0, tokens=1)]
    assert groups_of(masked) == [Group((0.75,), (0, 1), within=0.1875)]
    empty = [Scored(0, 0, 1.0, 0), Scored(0, 0, 0.0, 0)]
    assert groups_of(empty) == [Group((0.5,), (0, 1), within=0.25)]


def test_an_execution_of_the_same_number_in_another_group_is_another():
    assert [group.values for group in groups_of([Scored(0, 7, 1.0, 1), Scored(1, 7, 2.0, 1)])] == [(1.0,), (2.0,)]


def test_equal_rewards_are_not_rounded_by_a_mean():
    samples = [Scored(0, 0, 0.1, tokens) for tokens in (1, 1, 1)]
    assert groups_of(samples)[0].values == (0.1,)


def test_advantages_weighted_by_tokens_sum_to_zero():
    samples = [Scored(0, 0, 1.0, 30), Scored(0, 0, 0.0, 10), Scored(0, 1, 0.25, 20), Scored(0, 2, -1.0, 5)]
    (group,) = groups_of(samples)
    mean = sum(group.values) / len(group.values)
    per_execution = {0: 40, 1: 20, 2: 5}
    total = sum((s.reward - mean) * s.trained / per_execution[s.execution] for s in samples)
    assert total == pytest.approx(0.0, abs=1e-12)
