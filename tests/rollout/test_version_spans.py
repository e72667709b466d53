"""Which weights sampled which response tokens."""

from __future__ import annotations

from slime_agl.executor.entry import response_of
from slime_agl.record.codec import decode_ledger, encode_ledger
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import segments
from slime_agl.trace.turn import Sampled, Turn, logprob_array, token_array


def part(count: int, version: str, finish: str = "stop") -> Sampled:
    return Sampled(
        ids=token_array([7] * count), logprobs=logprob_array([-1.0] * count), finish=finish, weight_version=version
    )


def ledger(*turns: tuple[int, tuple[Sampled, ...]]) -> Ledger:
    """One conversation; a turn is (new tokens before it, what was sampled)."""
    made = Ledger("ro", "at")
    for index, (new, parts) in enumerate(turns):
        made.commit(
            Turn(
                index=index,
                parent=index - 1 if index else None,
                new_ids=token_array([1] * new),
                parts=parts,
                turn_id=f"t{index}",
            )
        )
    return made


def test_parts_of_a_turn_and_the_glue_between_turns_are_told_apart():
    held = ledger((5, (part(3, "1", "abort"), part(2, "2"))), (4, (part(6, "2"),)))
    spans = [[0, 3, "1"], [3, 5, "2"], [9, 15, "2"]]
    assert response_of(segments(held)[0])[1] == spans
    assert response_of(segments(decode_ledger(encode_ledger(held)))[0])[1] == spans, "as it is recorded"


def test_parts_that_the_same_weights_sampled_are_one_span():
    assert response_of(segments(ledger((5, (part(3, "1", "abort"), part(2, "1")))))[0]) == (5, [[0, 5, "1"]])


def test_what_was_not_sampled_or_is_not_known_has_no_span():
    held = ledger((5, (part(3, ""),)), (2, (part(0, "1", "abort"), part(1, "2"))))
    assert response_of(segments(held)[0])[1] == [[5, 6, "2"]]
