"""The list of injected faults fits the source; `scripts/mutants` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutation.faults import FAULTS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_one_place_in_the_source_and_a_test(name: str) -> None:
    fault = FAULTS[name]
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    path, _, test = fault.test.partition("::")
    assert (ROOT / path).exists()
    assert test.partition("[")[0] in (ROOT / path).read_text(encoding="utf-8")
