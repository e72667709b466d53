"""The first difference between a record and its rerun, in words, in tokens and as a diff."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from slime_agl.rerun.divergence import LONGEST_DIFF, Divergence, ended_early, unrecorded
from slime_agl.rerun.engine import Unrecorded
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import STOP, Media, Sampled, Turn, logprob_array, token_array


def texts(ids: Sequence[int]) -> list[str]:
    return [chr(i) for i in ids]


def ids(text: str) -> array:
    return token_array([ord(letter) for letter in text])


def ledger(*turns: tuple[int | None, str, str], media: Media | None = None) -> Ledger:
    """(parent, what is new in the prompt, what was answered) for each turn."""
    made = Ledger("ro", "at")
    for index, (parent, new, answer) in enumerate(turns):
        part = Sampled(ids=ids(answer), logprobs=logprob_array([0.0] * len(answer)), finish=STOP)
        made.commit(Turn(index=index, parent=parent, new_ids=ids(new), parts=(part,), turn_id="", media=media))
    return made


def found(made: Ledger, asked: str, given: tuple[int, ...] = ()) -> Divergence:
    return unrecorded(made, Unrecorded(0, ids(asked), (), frozenset(given)), texts)


CHAT = ledger((None, "ask\n", "call\n"), (0, "tool\n3\nso\n", "it is 3"))


def test_a_changed_result_is_compared_with_the_turn_that_followed():
    at = found(CHAT, "ask\ncall\ntool\n4\nso\n", given=(0,))
    assert (at.kind, at.turn, at.token, at.recorded, at.asked) == ("changed", 1, 14, "3", "4")
    assert at.diff == ("--- recorded", "+++ asked", "@@", " call", " tool", "-3", "+4", " so", " ")


def test_a_changed_first_prompt_is_compared_with_a_first_prompt():
    at = found(CHAT, "ask!\n")
    assert (at.kind, at.turn, at.token, at.recorded, at.asked) == ("changed", 0, 3, "\n", "!")
    assert "-ask" in at.diff and "+ask!" in at.diff


def test_of_branches_the_nearest_is_meant_and_of_equally_near_ones_the_one_to_come():
    made = ledger((None, "ask\n", "a"), (0, "one\n", "b"), (0, "two\n", "c"), (0, "two!\n", "c"))
    assert found(made, "ask\natwo?\n", given=(0, 1)).turn in (2, 3)
    assert found(made, "ask\natwo?\n", given=(0, 2)).turn == 3
    assert found(made, "ask\naone?\n", given=(0, 1)).turn == 1


def test_a_prompt_beyond_the_last_turn_goes_on():
    at = found(CHAT, "ask\ncall\ntool\n3\nso\nit is 3\nmore\n", given=(0, 1))
    assert (at.kind, at.turn, at.recorded, at.asked) == ("more", 1, None, "\n")
    assert at.diff[3:] == (" so", " it is 3", "+more", "+")


def test_a_prompt_that_ends_before_the_recorded_one_differs_at_its_end():
    at = found(CHAT, "ask\ncall\ntool\n3", given=(0,))
    assert (at.kind, at.turn, at.recorded, at.asked) == ("changed", 1, "\n", None)
    assert "nothing in the rerun" in at.words


def test_a_recorded_prompt_may_be_asked_too_often():
    at = found(CHAT, "ask\n", given=(0,))
    assert (at.kind, at.turn, at.diff) == ("again", 0, ())


def test_other_images_are_named():
    made = ledger((None, "ask\n", "a"), media=Media("", ("data:cat",)))
    assert found(made, "ask\n").kind == "images"


def test_equal_text_in_other_tokens_is_told():
    made = ledger((None, "ab", "c"))
    at = unrecorded(
        made,
        Unrecorded(0, token_array([256]), (), frozenset()),
        lambda ids: ["ab" if i == 256 else chr(i) for i in ids],
    )
    assert at.diff == ("  the texts are equal, the tokens differ",) and at.asked == "ab"


def test_an_empty_record_is_gone_beyond_at_once():
    assert (found(ledger(), "ask\n").kind, found(ledger(), "ask\n").turn) == ("more", None)


def test_long_diffs_are_cut():
    at = found(ledger((None, "x\n" * 500, "a")), "y\n" * 500)
    assert len(at.diff) == LONGEST_DIFF + 1 and at.diff[-1].endswith("more lines")


def test_an_early_end_shows_what_was_not_asked():
    at = ended_early(CHAT, CHAT.turns[1:], texts, attempt=0)
    assert (at.kind, at.turn) == ("early", 1) and "-3" in at.diff and "1 of 2" in at.words
