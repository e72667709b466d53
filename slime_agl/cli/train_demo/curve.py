"""Training curves, in the terminal and, with matplotlib, as a PNG."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotille

Row = dict[str, Any]  # the figures of a training step, a line of metrics.jsonl

_WIDTH, _HEIGHT = 50, 10
_TICKS = 5  # plotille labels every tenth column


def draw(values: Sequence[float], *, title: str, target: float | None) -> str:
    """Draw non-negative values by step as text of about 70 columns and 15 lines, with a line at the target."""
    figure = plotille.Figure()
    figure.width, figure.height = _WIDTH, _HEIGHT
    figure.with_colors = False
    for kind in (int, float):
        figure.register_label_formatter(kind, _label)
    figure.x_label, figure.y_label = "step", "reward"
    figure.set_x_limits(min_=0, max_=max(1, math.ceil((len(values) - 1) / _TICKS)) * _TICKS)  # ticks at whole steps
    figure.set_y_limits(min_=min(0.0, *values), max_=max(1.0, *values))
    figure.plot(list(range(len(values))), list(values))
    if target is not None:
        figure.axhline(target, xmin=0, xmax=1)
    return f"{title}\n{figure.show()}"


def _label(val: float, chars: int, delta: float, left: bool) -> str:
    text = f"{val:.1f}".removesuffix(".0")
    return text.ljust(chars) if left else text.rjust(chars)


def write_png(path: Path, rows: Sequence[Row], *, target: float | None) -> bool:
    """Plot reward and logprob difference by step. Returns False, and writes nothing, without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(8, 6), layout="constrained")
    reward, difference = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    reward.plot(steps, [row["reward"] for row in rows], marker=".")
    reward.set_ylabel("mean reward")
    reward.set_ylim(bottom=0)
    if target is not None:
        reward.axhline(target, linestyle="--", linewidth=1, color="grey")
    for name, label in (("difference", "max"), ("mean_difference", "mean")):
        difference.semilogy(steps, [max(row[name], 1e-9) for row in rows], marker=".", label=label)
    difference.set_ylabel("|rollout - learner logprob|")
    difference.legend()
    difference.xaxis.get_major_locator().set_params(integer=True)
    difference.set_xlabel("step")
    figure.savefig(path, dpi=120)
    return True
