"""pass@k and mean@k over the prompts of an evaluation, with 95 % confidence intervals.

An interval says how far a figure may lie from that of all prompts like these: prompts are what is drawn, and the
executions of one prompt depend on each other. pass@k has Wilson's interval with prompts as trials, which does not
collapse where all or none pass, and is wider than needed where prompts have fractions (k below the number of
executions). mean@k, whose rewards may have any scale, has a percentile bootstrap over prompts (2,000 draws, one seed).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959963984540054  # of a two-sided 95 %
DRAWS, CHUNK = 2000, 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over prompts. low, high: its interval, equal to `value` where one prompt gives none."""

    value: float
    low: float
    high: float


def pass_at(executions: int, passed: int, k: int) -> float:
    """Unbiased chance that at least one of k executions passes, of `executions` of which `passed` did (Chen 2021)."""
    if not 1 <= k <= executions or not 0 <= passed <= executions:
        raise ValueError(f"pass@{k} of {executions} executions, of which {passed} passed")
    if executions - passed < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(executions - passed + 1, executions + 1))


def wilson(share: float, trials: int) -> tuple[float, float]:
    """Wilson's score interval for a share of trials."""
    spread = Z * Z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Percentile interval of the mean, from means of values drawn with replacement."""
    given, drawn = np.asarray(values, dtype=float), np.random.default_rng(0)
    rows = max(1, CHUNK // len(given))
    means: list[float] = []
    while len(means) < DRAWS:
        count = min(rows, DRAWS - len(means))
        means += given[drawn.integers(len(given), size=(count, len(given)))].mean(axis=1).tolist()
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def figures(groups: Sequence[Sequence[float]], success: float) -> dict[str, Figure]:
    """`pass@1`, `pass@2`, `pass@4`, ... up to the executions that every prompt has, and `mean@k` over all of them.

    groups: rewards by prompt. success: the reward from which an execution passes. Each prompt counts once. Empty
    without groups.
    """
    groups = [group for group in groups if group]
    if not groups:
        return {}
    fewest, most = min(map(len, groups)), max(map(len, groups))
    found: dict[str, Figure] = {}
    for k in sorted({*(2**power for power in range(fewest.bit_length())), fewest}):
        rates = [pass_at(len(group), sum(reward >= success for reward in group), k) for group in groups]
        share = min(1.0, math.fsum(rates) / len(rates))
        found[f"pass@{k}"] = Figure(share, *wilson(share, len(rates)))
    means = [math.fsum(group) / len(group) for group in groups]
    mean = math.fsum(means) / len(means)
    found[f"mean@{most}"] = Figure(mean, *(bootstrap(means) if len(means) > 1 else (mean, mean)))
    return found
