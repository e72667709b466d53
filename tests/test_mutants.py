"""The list of injected faults fits the source; `scripts/mutants` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutation.faults import FAULTS, Fault, Misplaced

ROOT = Path(__file__).parents[1]


def test_a_fault_that_is_no_program_is_told_before_any_test_runs() -> None:
    with pytest.raises(Misplaced, match="does not compile"):
        Fault("a.py", "1", "(", "").applied("x = 1\n")
    with pytest.raises(Misplaced, match="2 times"):
        Fault("a.py", "1", "2", "").applied("x = 11\n")
    assert Fault("a.js", "1", "(", "").applied("x = 1") == "x = ("


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_one_place_in_the_source_and_a_test(name: str) -> None:
    fault = FAULTS[name]
    whole = (ROOT / fault.file).read_text(encoding="utf-8")
    assert fault.applied(whole) != whole
    path, _, test = fault.test.partition("::")
    assert (ROOT / path).exists()
    assert test.partition("[")[0] in (ROOT / path).read_text(encoding="utf-8")
