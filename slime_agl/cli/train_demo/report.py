"""Print and write the results of `train-demo`, live and at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slime_agl.cli.train_demo.curve import Row, draw, write_png
from slime_agl.cli.visible import safe_text, visible
from slime_agl.cli.workers import told
from slime_agl.local.train.recipes import Recipe
from slime_agl.local.train.training import TrainedStep

METRICS = "metrics.jsonl"
WINDOW = 5
_ROWS_LIVE, _ROWS_AT_END = 5, 12
# Heading -> (figure, format).
_COLUMNS = {
    "step": ("step", ""),
    "reward": ("reward", ".3f"),
    "turns": ("turns", ".2f"),
    "trained": ("trained", ""),
    "entropy": ("entropy", ".2f"),
    "clip": ("clipped", ".2f"),
    "max Δ": ("difference", ".0e"),
    "mean Δ": ("mean_difference", ".0e"),
    "roll s": ("rollout_seconds", ".2f"),
    "learn s": ("learn_seconds", ".2f"),
}


class TrainReport:
    """Collects training steps: live display on stderr, curve, table and verdict on stdout, each step in `out`.

    brief: one of several trainings: only the verdict on stdout, after this title. rows: the figures of each step.
    target: the recipe's.
    """

    def __init__(self, out: Path | None, *, brief: str = "") -> None:
        self._console, self._progress = Console(), Console(stderr=True)
        self._out, self._brief = out, brief
        self.rows: list[Row] = []
        self.target: float | None = None
        self._live: Live | None = None
        self._began = time.monotonic()
        self._error: Exception | None = None

    @contextmanager
    def preparing(self) -> Iterator[None]:
        with self._progress.status("loading the model, starting engine and router"):
            yield

    def started(self, recipe: Recipe, url: str, steps: int | None, workers: int | None) -> None:
        self.target, self._steps = recipe.target, steps
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            (self._out / METRICS).write_bytes(b"")
        if self._brief:
            return
        where = f"engine on CPU behind the real sglang-router at {url}{told(workers)}"
        self._console.print(safe_text(f"{recipe.title}\n{where}"), soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show progress during the block, if stderr is a terminal."""
        with Live(console=self._progress, transient=True, auto_refresh=False) as self._live:
            yield

    def step(self, step: TrainedStep, *, checked: int, in_flight: int) -> None:
        metrics, samples = step.rollout.metrics, step.rollout.samples
        trained = sum(sum(sample.loss_mask or ()) for sample in samples)
        self.rows.append(
            {
                "step": step.rollout.rollout_id,
                "reward": step.reward,
                "turns": metrics["rollout/agl/turns_per_execution"],
                "trained": trained,
                "masked": sum(sample.response_length for sample in samples) - trained,
                **asdict(step.update),
                "rollout_seconds": step.rollout.seconds,
                "learn_seconds": step.learn_seconds,
                "checked_tokens": checked,
                "in_flight": in_flight,
                "held": in_flight == 0 and checked == trained,
                "metrics": metrics,
            }
        )
        if self._out is not None:
            with (self._out / METRICS).open("ab") as file:
                file.write(orjson.dumps(self.rows[-1], option=orjson.OPT_NON_STR_KEYS) + b"\n")
        if self._live is not None:
            self._live.update(self._display(), refresh=True)

    @property
    def held(self) -> bool:
        """True while every check of every step has agreed."""
        return self._error is None and all(row["held"] for row in self.rows)

    @property
    def recent(self) -> float:
        """Mean reward of the last WINDOW steps."""
        recent = [row["reward"] for row in self.rows[-WINDOW:]]
        return sum(recent) / len(recent)

    @property
    def learned(self) -> bool:
        """True if the mean reward of the last WINDOW steps exceeds the target."""
        return self.target is not None and len(self.rows) >= WINDOW and self.recent > self.target

    def broken(self, error: Exception) -> None:
        self._error = error

    def finish(self) -> int:
        """Print curve, table and verdict; write the plot. Returns the exit status."""
        if self._brief:
            self._console.print(self._brief, style="bold")
        if self.rows and not self._brief:
            self._console.print(self._curve(), self._table(_spread(self.rows, _ROWS_AT_END)))
            self._console.print(
                "trained = tokens; clip = share of them with a clipped ratio;\n"
                "Δ = |rollout - learner logprob| of the trained tokens before the step's first update",
                style="dim",
            )
        if self.rows:
            self._verdict(self.held)
        if self._error is not None:
            told = Text("invariant broken", "bold red") + Text(f": {visible(str(self._error))}", "default")
            self._console.print(told, soft_wrap=True)
        if self._out is not None and self.rows:
            self._plot(self._out)
        return 0 if self.held and (self.target is None or self.learned) else 1

    def _verdict(self, held: bool) -> None:
        rewards = [row["reward"] for row in self.rows]
        said = f"reward {rewards[0]:.3f} at first, {self.recent:.3f} over the last {min(WINDOW, len(rewards))} steps"
        if self.target is not None:
            said += ": [bold green]learned[/]" if self.learned else f": [bold red]not above {self.target}[/]"
        checked = sum(row["checked_tokens"] for row in self.rows)
        worst = max(row["difference"] for row in self.rows)
        self._console.print(f"{said} ({len(rewards)} steps, {time.monotonic() - self._began:.0f} s)")
        self._console.print(
            f"{'[bold green]all invariants held[/]' if held else '[bold red]an invariant is broken[/]'}: "
            f"{checked} trained tokens are the engine's own; max |rollout - learner logprob| = {worst:.1e}"
        )

    def _display(self) -> Group:
        of = "" if self._steps is None else f" of {self._steps}"
        title = f"step {len(self.rows)}{of}, {time.monotonic() - self._began:.0f} s, reward {self.recent:.3f}"
        return Group(Text(title, style="bold"), self._curve(), self._table(self.rows[-_ROWS_LIVE:]))

    def _curve(self) -> Text:
        return Text(draw([row["reward"] for row in self.rows], title="mean reward by step", target=self.target))

    def _table(self, rows: list[Row]) -> Table:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for name in _COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*(format(row[key], spec) for key, spec in _COLUMNS.values()))
        return table

    def _plot(self, out: Path) -> None:
        self._console.print(safe_text(f"wrote {out / METRICS} ({len(self.rows)} steps)"), soft_wrap=True)
        if write_png(out / "curve.png", self.rows, target=self.target):
            self._console.print(safe_text(f"wrote {out / 'curve.png'}"), soft_wrap=True)
        else:
            self._console.print("no curve.png: matplotlib is not installed; install it with: pip install matplotlib")


def _spread(rows: list[Row], most: int) -> list[Row]:
    """Return at most `most` rows, evenly spaced, including the first and the last."""
    if len(rows) <= most:
        return rows
    return [rows[round(at * (len(rows) - 1) / (most - 1))] for at in range(most)]
