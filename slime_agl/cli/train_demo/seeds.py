"""The same training with several seeds: one good curve may be luck."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slime_agl.cli.train_demo.curve import draw, mean_curve, write_seeds_png
from slime_agl.cli.train_demo.report import WINDOW, TrainReport
from slime_agl.cli.visible import safe_text

PICTURE = "curves.png"


def compare(seeds: Sequence[int], train: Callable[[int, TrainReport], int], out: Path | None) -> int:
    """Train with each seed; print its verdict, then a table and the curve of the mean. Returns the exit status.

    train: (seed, where it reports) -> exit status. out: each training writes into `seed-N` there; also the picture of
    all curves.
    """
    console = Console()
    reports: dict[int, TrainReport] = {}
    statuses = []
    for seed in seeds:
        folder = None if out is None else out / f"seed-{seed}"
        reports[seed] = TrainReport(folder, brief=f"seed {seed}")
        statuses.append(train(seed, reports[seed]))
    curves = [[row["reward"] for row in report.rows] for report in reports.values() if report.rows]
    if not curves:
        return 1
    target = next(iter(reports.values())).target
    title = f"mean reward by step, and that of each of {len(curves)} seeds"
    console.print(Text(draw(mean_curve(curves), title=title, target=target, around=curves)), _table(reports))
    if out is not None and write_seeds_png(out / PICTURE, curves, target=target):
        console.print(safe_text(f"wrote {out / PICTURE}"), soft_wrap=True)
    return max(statuses)


def _table(reports: dict[int, TrainReport]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("seed", "first", f"last {WINDOW}", "steps", "learned", "held", "tokens checked", "max Δ"):
        table.add_column(name, justify="right", no_wrap=True)
    for seed, report in reports.items():
        rows = report.rows
        if not rows:
            table.add_row(str(seed), *[""] * 4, _told(report.held))
            continue
        table.add_row(
            str(seed),
            f"{rows[0]['reward']:.3f}",
            f"{report.recent:.3f}",
            str(len(rows)),
            "" if report.target is None else _told(report.learned),
            _told(report.held),
            f"{sum(row['checked_tokens'] for row in rows):,}",
            f"{max(row['difference'] for row in rows):.0e}",
        )
    return table


def _told(good: bool) -> str:
    return "yes" if good else "no"
