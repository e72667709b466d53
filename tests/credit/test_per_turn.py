"""Rewards of turns become discounted returns of segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_agl.credit.emitted import Emitted
from slime_agl.credit.per_turn import per_turn, turn_returns
from slime_agl.trace.segments import Segment
from tests.credit.credit_helpers import execution, turns_of

CHAIN = execution((None, "m"), (0, "m"), (1, "m"))
# Turns 0 and 1 are one conversation, 2 is a subagent's, 3 goes on with the first.
SUBAGENT = execution((None, "m"), (0, "m"), (None, "sub"), (1, "m"))


def reward(value: float, after: int, *linked: int) -> Emitted:
    return Emitted({"primary": value}, after, linked)


def credit(emitted: list[Emitted], parts: tuple[Segment, ...], discount: float = 1.0) -> list[float]:
    got = per_turn(emitted, [item.values for item in emitted], parts, discount=discount)
    return [values["primary"] for values in got]


def test_the_example_of_the_documentation():
    parts = execution((None, "m"), (0, "m"), (None, "m"))
    assert turns_of(parts) == [[0, 1], [2]]
    assert credit([reward(1.0, 1), reward(4.0, 3)], parts, 0.5) == [2.0, 4.0]


def test_returns_are_discounted_from_behind():
    assert turn_returns([1.0, 0.0, 4.0], 0.5) == [2.0, 2.0, 4.0]
    assert turn_returns([1.0, 2.0, 3.0], 0.0) == [1.0, 2.0, 3.0]
    assert turn_returns([], 0.9) == []


def test_a_single_segment_gets_all_that_was_earned():
    assert credit([reward(1.0, 1), reward(2.0, 2), reward(4.0, 3)], CHAIN) == [7.0]


def test_a_reward_in_the_end_reaches_every_segment_and_shrinks_with_each_turn():
    assert turns_of(SUBAGENT) == [[2], [0, 1, 3]]
    assert credit([reward(8.0, 4)], SUBAGENT) == [8.0, 8.0]
    assert credit([reward(8.0, 4)], SUBAGENT, 0.5) == [4.0, 1.0]


def test_a_segment_is_not_paid_for_what_came_before_it():
    assert credit([reward(5.0, 2), reward(1.0, 4)], SUBAGENT) == [1.0, 6.0]


def test_a_link_moves_a_reward_that_came_late_to_its_turn():
    parts = execution((None, "m"), (None, "m"), (None, "m"))
    assert credit([reward(3.0, 3)], parts) == [3.0, 3.0, 3.0]
    assert credit([reward(3.0, 3, 0)], parts) == [3.0, 0.0, 0.0]
    assert credit([reward(3.0, 3, 0, 1)], parts) == [3.0, 3.0, 0.0], "to the last of several turns"


def test_a_reward_before_every_turn_belongs_to_the_first():
    assert credit([reward(2.0, 0)], execution((None, "m"), (None, "m"))) == [2.0, 0.0]


def test_a_turn_that_does_not_train_is_no_step():
    parts = execution((None, "m"), (0, "m", "abandoned"), (None, "m"))
    assert turns_of(parts) == [[0], [2]]
    assert credit([reward(4.0, 3)], parts, 0.5) == [2.0, 4.0]
    assert credit([reward(4.0, 2)], parts, 0.5) == [4.0, 0.0]


def test_every_dimension_is_counted_by_itself():
    emitted = [Emitted({"right": 1.0}, 1), Emitted({"right": 0.0, "short": 2.0}, 2)]
    parts = execution((None, "m"), (None, "m"))
    got = per_turn(emitted, [item.values for item in emitted], parts, discount=0.5)
    assert got == [{"right": 1.0, "short": 1.0}, {"right": 0.0, "short": 2.0}]


def test_an_execution_without_tokens_has_no_credit():
    assert per_turn([reward(1.0, 0)], [{"primary": 1.0}], (), discount=1.0) == []


@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(0, 5)), max_size=6), st.sampled_from([0.0, 0.5, 1.0]))
def test_one_segment_a_turn_gets_the_textbook_return(given_rewards, discount):
    parts = execution(*[(None, "m")] * 4)
    places = [min(max(after - 1, 0), 3) for _, after in given_rewards]
    expected = [
        sum(
            v * discount ** (place - turn) for (v, _), place in zip(given_rewards, places, strict=True) if place >= turn
        )
        for turn in range(4)
    ]
    emitted = [reward(float(value), after) for value, after in given_rewards] or [reward(0.0, 0)]
    assert credit(emitted, parts, discount) == pytest.approx(expected)
