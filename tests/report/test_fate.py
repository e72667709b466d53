"""Each token's fate is read from masks, not guessed."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from slime_agl.errors import RecordError
from slime_agl.report.fate import fates, untrained
from slime_agl.report.summary import row
from tests.report.made import made, run_of


def test_a_mask_is_laid_on_the_turns_it_covers():
    told = fates(made(output=3, masked_turns=1))
    assert [list(fate.trained) for fate in told] == [[1, 1, 1], [0, 0, 0]]
    assert [fate.why for fate in told] == ["", "masked"]


def test_a_partial_mask_stays_partial():
    execution = made(output=3)
    (sample,) = execution.samples
    (fate,) = fates(replace(execution, samples=(replace(sample, mask=array("b", [0, 1, 1])),)))
    assert (list(fate.trained), fate.why) == ([0, 1, 1], "")
    assert untrained(replace(execution, samples=(replace(sample, mask=array("b", [0, 1, 1])),))) == {"masked": 1}


def test_a_failed_execution_says_so_for_every_token():
    execution = made(failure="deadline", error="late")
    assert untrained(execution) == {"deadline": 3}
    assert row(run_of(execution), execution).trained == 0


def test_a_mask_of_another_length_is_refused_with_both_numbers():
    execution = made(output=3)
    (sample,) = execution.samples
    broken = replace(execution, samples=(replace(sample, mask=array("b", [1])),))
    with pytest.raises(RecordError, match="has 1 entries.*response of 3 tokens"):
        fates(broken)


def test_a_row_counts_and_averages():
    execution = made(output=3, masked_turns=1, versions=("7", "8"))
    entry = row(run_of(execution), execution)
    assert (entry.turns, entry.segments, entry.sampled, entry.trained, entry.masked, entry.glue) == (2, 1, 6, 3, 3, 2)
    assert entry.weights == ("7", "8")
    assert entry.logprob == pytest.approx(-1.0)
