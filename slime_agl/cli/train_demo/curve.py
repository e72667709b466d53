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


def draw(values: Sequence[float], *, title: str, target: float | None, around: Sequence[Sequence[float]] = ()) -> str:
    """Draw non-negative values by step as text of about 70 columns and 15 lines, with a line at the target.

    around: further curves, drawn as single points.
    """
    figure = plotille.Figure()
    figure.width, figure.height = _WIDTH, _HEIGHT
    figure.with_colors = False
    for kind in (int, float):
        figure.register_label_formatter(kind, _label)
    figure.x_label, figure.y_label = "step", "reward"
    figure.set_x_limits(min_=0, max_=max(1, math.ceil((len(values) - 1) / _TICKS)) * _TICKS)  # ticks at whole steps
    every = [*values, *(value for curve in around for value in curve)]
    figure.set_y_limits(min_=min(0.0, *every), max_=max(1.0, *every))
    for curve in around:
        figure.scatter(list(range(len(curve))), list(curve))
    figure.plot(list(range(len(values))), list(values))
    if target is not None:
        figure.axhline(target, xmin=0, xmax=1)
    return f"{title}\n{figure.show()}"


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Mean by step. A curve that ends before others goes on with the mean of its last five values."""
    length = max(map(len, curves))
    ends = [sum(curve[-5:]) / len(curve[-5:]) for curve in curves]
    longer = [[*curve, *[end] * (length - len(curve))] for curve, end in zip(curves, ends, strict=True)]
    return [sum(values) / len(values) for values in zip(*longer, strict=True)]


def write_seeds_png(path: Path, curves: Sequence[Sequence[float]], *, target: float | None) -> bool:
    """Plot the rewards of several trainings by step, and their mean. Returns as `write_png`."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    reward = figure.subplots()
    for curve in curves:
        reward.plot(curve, color="tab:blue", linewidth=0.8, alpha=0.5)
    reward.plot(mean_curve(curves), color="tab:blue", linewidth=2, label=f"mean of {len(curves)} seeds")
    if target is not None:
        reward.axhline(target, linestyle="--", linewidth=1, color="grey")
    reward.set_xlabel("step")
    reward.set_ylabel("mean reward")
    reward.set_ylim(bottom=0)
    reward.xaxis.get_major_locator().set_params(integer=True)  # pyright: ignore[reportCallIssue]: of MaxNLocator
    reward.legend()
    figure.savefig(path, dpi=120)
    return True


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
    difference.xaxis.get_major_locator().set_params(integer=True)  # pyright: ignore[reportCallIssue]: of MaxNLocator
    difference.set_xlabel("step")
    figure.savefig(path, dpi=120)
    return True
