"""pass@k, mean@k and their intervals."""

from __future__ import annotations

import itertools
import math

import pytest

from slime_agl.report.passing import bootstrap, figures, pass_at, wilson


@pytest.mark.parametrize("executions", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_all_subsets_in_which_one_passes(executions: int):
    for passed, k in itertools.product(range(executions + 1), range(1, executions + 1)):
        outcomes = [1] * passed + [0] * (executions - passed)
        subsets = list(itertools.combinations(outcomes, k))
        assert pass_at(executions, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize("given", [(4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)])
def test_what_makes_no_sense_is_refused(given: tuple[int, int, int]):
    with pytest.raises(ValueError, match=f"pass@{given[2]} of 4 executions, of which {given[1]} passed"):
        pass_at(*given)


def test_wilsons_interval_is_that_of_the_literature():
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_wilsons_interval_covers_the_truth_as_often_as_it_says():
    trials, truth = 40, 0.3
    covered = 0.0
    for passed in range(trials + 1):
        low, high = wilson(passed / trials, trials)
        chance = math.comb(trials, passed) * truth**passed * (1 - truth) ** (trials - passed)
        covered += chance * (low <= truth <= high)
    assert 0.93 < covered < 0.98


def test_the_bootstrap_of_many_values_is_about_two_standard_errors_wide_and_the_same_each_time():
    values = [at % 10 for at in range(400)]
    low, high = bootstrap(values)
    assert (low, high) == bootstrap(values)
    deviation = math.sqrt(sum((value - 4.5) ** 2 for value in values) / 400)
    assert (low, high) == pytest.approx((4.5 - 1.96 * deviation / 20, 4.5 + 1.96 * deviation / 20), abs=0.05)


def test_figures_of_prompts():
    found = figures([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.5, 0.5]], success=1.0)
    assert list(found) == ["pass@1", "pass@2", "pass@3", "mean@3"]
    assert found["pass@1"].value == pytest.approx((1 / 3 + 0 + 2 / 3) / 3)
    assert found["pass@2"].value == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert found["pass@3"].value == pytest.approx(2 / 3)
    assert (found["pass@3"].low, found["pass@3"].high) == pytest.approx(wilson(2 / 3, 3))
    assert found["mean@3"].value == pytest.approx((1 / 3 + 0 + 1) / 3)
    assert 0.0 <= found["mean@3"].low < found["mean@3"].value < found["mean@3"].high <= 1.0


def test_prompts_with_fewer_executions_bound_k_and_count_once():
    found = figures([[1.0], [], [0.0, 0.0, 0.0, 1.0]], success=1.0)
    assert list(found) == ["pass@1", "mean@4"]
    assert found["pass@1"].value == found["mean@4"].value == pytest.approx(0.625)
    assert figures([[]], success=1.0) == {}
