"""Credit by turn, from what was emitted to the tokens of a segment."""

from __future__ import annotations

import pytest

from slime_agl.credit.emitted import Emitted
from slime_agl.credit.turns import TurnCredit, as_given, by_returns, earned, relative_to_state, unpacked
from slime_agl.errors import InvariantError
from tests.credit.credit_helpers import execution


def emitted(*after: int) -> list[Emitted]:
    return [Emitted({"primary": 1.0}, after=at) for at in after]


def test_a_turn_covers_its_own_tokens_and_not_the_glue() -> None:
    (segment,) = execution((None, "m"), (0, "m"), (1, "m"))
    spans = [(turn.start, turn.end) for turn in as_given({}, segment)]
    # Two sampled tokens each, and one token of glue before each turn but the first.
    assert spans == [(0, 2), (3, 5), (6, 8)]


def test_returns_and_rewards_of_one_segment() -> None:
    parts = execution((None, "m"), (0, "m"), (1, "m"))
    rewards = earned(emitted(1, 3), [1.0, 4.0], parts)
    assert rewards == {0: 1.0, 1: 0.0, 2: 4.0}
    turns = by_returns(rewards, parts[0], discount=0.5)
    assert [turn.value for turn in turns] == [2.0, 2.0, 4.0]
    assert [turn.reward for turn in turns] == [1.0, 0.0, 4.0]
    assert {turn.total for turn in turns} == {5.0}


def test_rewards_of_a_segment_add_up_to_what_was_earned_from_it_on_also_by_others() -> None:
    # A parent whose turns 0 and 3 frame a subagent's 1 and 2.
    parts = execution((None, "m"), (None, "sub"), (1, "sub"), (0, "m"))
    rewards = {0: 1.0, 1: 10.0, 2: 100.0, 3: 1000.0}
    by_turns = {min(part.trained): by_returns(rewards, part, discount=1.0) for part in parts}
    assert [turn.reward for turn in by_turns[0]] == [111.0, 1000.0]
    assert [turn.reward for turn in by_turns[1]] == [10.0, 1100.0]
    for turns in by_turns.values():
        assert sum(turn.reward for turn in turns) == turns[0].value


def test_a_turn_that_another_segment_trains_has_no_credit_here() -> None:
    parts = execution((None, "m"), (0, "m"), (0, "m"))
    spans = [[(turn.start, turn.end) for turn in as_given({}, part)] for part in parts]
    assert spans == [[(0, 2), (3, 5)], [(0, 2)]]


def test_an_untrained_turn_between_is_skipped() -> None:
    (segment,) = execution((None, "m"), (0, "m", "superseded"), (1, "m"))
    assert [(turn.start, turn.end) for turn in as_given({}, segment)] == [(0, 2), (6, 8)]


def test_turns_of_equal_prompts_share_a_state() -> None:
    parts = execution((None, "m"), (0, "m"), (0, "m"))
    turns = [turn for part in parts for turn in as_given({}, part)]
    first, second, third = (turn.state for turn in turns)
    assert second == third != first


def test_it_travels_in_metadata() -> None:
    turn = TurnCredit(start=2, end=5, value=0.5, reward=0.25, state="a", total=3.0)
    assert unpacked({"agl": {"credit": [turn.packed()]}}) == [turn]
    assert unpacked(None) == unpacked({}) == unpacked({"agl": {}}) == []


def test_credit_for_no_tokens_is_refused() -> None:
    with pytest.raises(InvariantError, match="tokens 3 to 3"):
        TurnCredit(start=3, end=3, value=0.0, reward=0.0)


def test_turns_of_a_state_are_compared_with_each_other_only() -> None:
    states = [(0, "a"), (0, "a"), (0, "b"), (1, "a")]
    assert relative_to_state(states, [1.0, 3.0, 7.0, 9.0], scale=False, least_std=0.0) == [-1.0, 1.0, 0.0, 0.0]
    scaled = relative_to_state(states, [1.0, 3.0, 7.0, 9.0], scale=True, least_std=0.0)
    assert scaled[1] == pytest.approx(1 / 2**0.5)
