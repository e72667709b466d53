"""What a run proves about answers that were kept, not re-encoded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made import made

from slime_agl.report.reencoding import look_at_re_encoding


def merges_the_first_two(ids: Sequence[int]) -> list[int]:
    return [999, *ids[2:]]


@pytest.mark.parametrize(
    ("recode", "verdict", "words"),
    [
        (merges_the_first_two, "pass", "2 of 2 answers that a turn went on from have other ids"),
        (list, "look", "all 2 answers that a turn went on from are encoded as the tokenizer would, so this run cannot"),
    ],
)
def test_only_ids_that_encoding_changes_can_show_it(recode, verdict, words):
    runs = [made("ro-0", masked_turns=1), made("ro-1", masked_turns=1)]
    found = look_at_re_encoding(runs, recode)
    assert found.verdict == verdict and found.words.startswith(words)


def test_an_answer_that_several_turns_go_on_from_counts_once_and_the_last_one_not():
    found = look_at_re_encoding([made(masked_turns=2)], merges_the_first_two)
    assert found.words.startswith("2 of 2")


def test_single_turns_cannot_show_it():
    found = look_at_re_encoding([made(), made("ro-1")], merges_the_first_two)
    assert found.verdict == "look" and "no turn went on from an earlier one" in found.words
