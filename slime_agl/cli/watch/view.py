"""Draw the board of a run in progress."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slime_agl.cli.visible import safe_text
from slime_agl.record.following import FollowedStep, Follower
from slime_agl.report.live import StepFigures, figures

BARS = "▁▂▃▄▅▆▇█"
MOST_REASONS = 4
# Narrower terminals leave these out.
WIDE, LEFT_OUT = 110, ("middle", "segs", "p90 s", "engine", "flat")
# Lines around the steps, and steps that are shown even where they do not fit.
AROUND, FEWEST_STEPS = 13, 3
# A step that is so many times as long as the slowest one before it is worth a look.
LATE = 3.0


class Board:
    """The state of the display. A step's figures are computed again only when its files grew."""

    def __init__(self, run: Path, follower: Follower) -> None:
        self._run, self._follower = run, follower
        self._steps: list[FollowedStep] = []
        self._figures: dict[str, StepFigures] = {}

    def update(self) -> None:
        """Read what is new."""
        self._steps = self._follower.poll()
        self._figures = {
            step.name: figures(step) if step.changed or step.name not in self._figures else self._figures[step.name]
            for step in self._steps
        }

    def draw(self, now: float, width: int, height: int | None = None) -> RenderableType:
        """The board as of `now`, seconds since the epoch, for a terminal of that size; all steps without a height."""
        told = [self._figures[step.name] for step in self._steps]
        if height is not None:
            told = told[-max(FEWEST_STEPS, height - AROUND) :]
        parts: list[RenderableType] = [self._title(told, now)]
        if told:
            parts += [_table(told, width), _notes(told)]
        parts += [safe_text(words, "yellow") for words in self._follower.flaws()]
        return Group(*parts)

    def _title(self, told: Sequence[StepFigures], now: float) -> Text:
        title = safe_text(self._run, "bold")
        if not told:
            where = "nothing is recorded there yet" if self._run.exists() else "does not exist yet"
            return title + Text(f"  {where}; waiting for the first step", "yellow")
        header = self._steps[-1].own.header or {}
        title += safe_text(f"  {header.get('agent', '')} · {header.get('checkpoint', '')}", "default")
        written = max(tail.written for step in self._steps for tail in step.tails)
        silent = max(0.0, now - written)
        ended = [one.seconds for one in told if one.executions]
        late = bool(ended) and silent > LATE * max(ended) + 60
        words = f"\n{_step(told[-1].name)}, last written {_duration(silent)} ago"
        if late:
            words += "; the run has ended, or is stuck: see slime-agl guide troubleshooting"
        return title + Text(words, "yellow" if late else "dim")


def print_once(board: Board) -> None:
    """Print the board as it is."""
    console = Console()
    board.update()
    console.print(board.draw(time.time(), console.width))


def refresh(board: Board, wait: Callable[[], object], console: Console | None = None) -> None:
    """Redraw until `wait` raises, which is called between two looks."""
    console = console or Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            board.update()
            live.update(board.draw(time.time(), *console.size), refresh=True)
            wait()


def _table(told: Sequence[StepFigures], width: int) -> Table:
    columns = {name: column for name, column in _COLUMNS.items() if width >= WIDE or name not in LEFT_OUT}
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at == 0 else "right", no_wrap=True)
    for one in told:
        bad = "bold red" if one.delivered and not one.trained else ""
        table.add_row(*(safe_text(column(one), bad) for column in columns.values()))
    return table


_COLUMNS: dict[str, Callable[[StepFigures], str]] = {
    "step": lambda one: _step(one.name),
    "reward": lambda one: _number(one.reward, 3),
    "middle": lambda one: "–" if one.low is None else f"{one.low:.2f}…{one.high:.2f}",
    "execs": lambda one: (
        f"{one.delivered}" + (f"+{one.executions - one.delivered}" if one.executions > one.delivered else "")
    ),
    "failed": lambda one: str(sum(one.failed.values()) or "·"),
    "flat": lambda one: f"{one.flat}/{one.groups}" if one.groups else "–",
    "turns": lambda one: f"{one.turns:.1f}",
    "segs": lambda one: f"{one.segments:.2f}",
    "trained": lambda one: f"{one.trained:,}",
    "masked": lambda one: f"{(one.sampled - one.trained) / one.sampled:.0%}" if one.sampled else "–",
    "p90 s": lambda one: _number(one.p90, 1),
    "engine": lambda one: "–" if one.engine_share is None else f"{one.engine_share:.0%}",
    "took": lambda one: _duration(one.seconds),
    "tok/s": lambda one: f"{one.sampled / one.seconds:,.0f}" if one.seconds > 0 else "–",
}


def _notes(told: Sequence[StepFigures]) -> Text:
    text = Text()
    training = [one.reward for one in told if one.reward is not None and not one.name.startswith("eval")]
    if len(training) > 1:
        text.append(f"reward {sparkline(training)}  {training[0]:.3f} to {training[-1]:.3f}\n")
    for name, counts, style in (
        ("failed", _total(one.failed for one in told), "red"),
        ("forks", _total(one.forks for one in told), "yellow"),
        ("tokens that do not train", _total(one.untrained for one in told), "yellow"),
    ):
        if counts:
            listed = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common(MOST_REASONS))
            rest = "" if len(counts) <= MOST_REASONS else f" and {len(counts) - MOST_REASONS} more reasons"
            text += Text(f"{name}: ", "bold") + safe_text(f"{listed}{rest}\n", style)
    error = next((one.last_error for one in reversed(told) if one.last_error), "")
    if error:
        text += Text("last error: ", "bold") + safe_text(f"{error}\n", "red")
    missing = [name for one in told for name in one.missing]
    if missing:
        text += safe_text(f"not here: {', '.join(missing[:MOST_REASONS])}; workers wrote them elsewhere\n", "yellow")
    text.rstrip()
    return text


def sparkline(values: Sequence[float]) -> str:
    """One bar per value, from the lowest to the highest."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] for value in values)


def _total(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _step(name: str) -> str:
    """`step-000012` as `step 12`."""
    kind, dash, number = name.rpartition("-")
    return f"{kind} {int(number)}" if dash and number.isascii() and number.isdecimal() else name


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
