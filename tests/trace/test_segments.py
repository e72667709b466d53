"""The turn tree becomes segments that cover every sampled token once."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_agl.errors import InvariantError
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import account, segments
from slime_agl.trace.turn import Sampled, Turn, logprob_array, token_array


def turn(index: int, parent: int | None, *, new: list[int] = (1,), out: list[int] = (9,), **more: object) -> Turn:
    part = Sampled(ids=token_array(out), logprobs=logprob_array([-0.5] * len(out)), finish=more.pop("finish", "stop"))
    return Turn(index=index, parent=parent, new_ids=token_array(new), parts=(part,), turn_id=f"turn-{index}", **more)


def ledger(*turns: Turn) -> Ledger:
    held = Ledger("ro-1", "at-1")
    for each in turns:
        held.commit(each)
    return held


def test_a_chain_is_one_segment_whose_ids_are_what_the_engine_saw():
    held = ledger(turn(0, None, new=[1, 2], out=[10, 11]), turn(1, 0, new=[3], out=[12]))
    (only,) = segments(held)
    assert only.trained == {0, 1}
    assert list(held.ids(1)) == [1, 2, 10, 11, 3, 12]
    assert list(only.prompt_ids()) == [1, 2]
    assert held.length(1) == 6


def test_two_branches_share_a_turn_that_trains_once():
    held = ledger(turn(0, None), turn(1, 0, out=[20, 21]), turn(2, 0, out=[30], fork="branch"))
    first, second = segments(held)
    assert (first.trained, second.trained) == ({0, 1}, {2})
    assert list(second.prompt_ids()) == [1, 9, 1]
    assert account(held, (first, second)).trained == 4


def test_a_turn_nobody_may_train_leaves_no_segment_of_its_own():
    held = ledger(turn(0, None), turn(1, 0, out=[7, 7, 7], untrained="abandoned"), turn(2, 0))
    (only,) = segments(held)
    assert [t.index for t in only.turns] == [0, 2]
    fate = account(held, (only,))
    assert (fate.sampled, fate.trained, dict(fate.untrained)) == (5, 2, {"abandoned": 3})


def test_a_token_without_a_reason_is_a_crash():
    held = ledger(turn(0, None))
    with pytest.raises(InvariantError, match="turn 0 of rollout ro-1, attempt at-1: 1 sampled tokens train nowhere"):
        account(held, ())


def test_a_segment_counted_twice_is_a_crash():
    held = ledger(turn(0, None))
    (only,) = segments(held)
    with pytest.raises(InvariantError, match="trains in 2 segments, expected 1"):
        account(held, (only, only))


@pytest.mark.parametrize("index, parent", [(1, None), (0, 0), (0, 3)])
def test_turns_are_committed_in_order_below_known_parents(index: int, parent: int | None):
    with pytest.raises(InvariantError):
        ledger(turn(index, parent))


def test_ids_and_logprobs_of_an_answer_have_one_length():
    with pytest.raises(InvariantError, match="2 token ids but 1 logprobs"):
        Sampled(ids=array("i", [1, 2]), logprobs=array("d", [-1.0]), finish="stop")


@st.composite
def trees(draw: st.DrawFn) -> Ledger:
    held = Ledger("ro", "at")
    for index in range(draw(st.integers(0, 12))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        out = draw(st.lists(st.integers(0, 99), max_size=3))
        reason = draw(st.sampled_from(["", "", "", "abandoned", "sealed"]))
        held.commit(turn(index, parent, new=draw(st.lists(st.integers(0, 99), max_size=3)), out=out, untrained=reason))
    return held


@given(trees())
def test_every_sampled_token_trains_once_or_has_a_reason(held: Ledger):
    parts = segments(held)
    fate = account(held, parts)
    assert fate.sampled == sum(t.output_length for t in held.turns)
    assert fate.trained == sum(t.output_length for t in held.turns if not t.untrained)
    for part in parts:
        whole = held.ids(part.turns[-1].index)
        start = len(part.prompt_ids())
        assert whole[:start] == part.prompt_ids()
        assert len(whole) == held.length(part.turns[-1].index)
