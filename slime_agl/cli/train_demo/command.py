"""`slime-agl train-demo`: the whole training loop on a laptop, with a policy that learns."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from slime_agl.cli.demo.example import example_directory, unwind_on_signals
from slime_agl.cli.workers import workers_option

TINY = "tiny"
TASKS = ("boxes", "distill", "errands", "turns", "turns-by-outcome", "async")


@click.command("train-demo", short_help="Train a small model on the CPU until it has learned.")
@click.option(
    "--model",
    default=TINY,
    show_default=True,
    help="'tiny' (created on the spot), or for examples/math_feedback 'smollm2' or a Hugging Face directory.",
)
@click.option(
    "--task",
    type=click.Choice(TASKS),
    default=TASKS[0],
    show_default=True,
    help="What 'tiny' learns. distill: the same from a teacher, without reward. errands: three turns with a subagent. "
    "turns: credit by turn inside a Sample, and turns-by-outcome without. async: weights up to two steps old.",
)
@click.option("--steps", type=click.IntRange(1), help="Maximum training steps; 60 for 'tiny', else unbounded.")
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), help="Maximum minutes of training; none by default."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the tiny model and of the engine's sampling.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Train this many times, with seeds from --seed on, and compare the curves.",
)
@workers_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write metrics.jsonl and curve.png here.")
def train_demo(
    model: str,
    task: str,
    steps: int | None,
    minutes: float | None,
    seed: int,
    seeds: int,
    workers: int | None,
    out: Path | None,
) -> None:
    """Train a small model on the CPU, through the generate that slime calls.

    'tiny' must call a tool before it can answer; training ends when the mean reward over five steps exceeds 0.9.
    Each step compares every Sample with the engine's record, and the rollout's logprobs with the learner's.
    Exit status 0 only if all agree and, with 'tiny', the model has learned, with every seed.
    """
    unwind_on_signals()
    os.environ.setdefault("TQDM_DISABLE", "1")  # generate's progress bars would corrupt the live display
    # Imported late: torch and transformers take seconds, and `slime-agl --help` should not.
    from slime_agl.cli.train_demo.recipes import TASKS as TINY_TASKS
    from slime_agl.cli.train_demo.recipes import math_feedback
    from slime_agl.cli.train_demo.report import TrainReport
    from slime_agl.cli.train_demo.run import run_train_demo
    from slime_agl.cli.train_demo.seeds import compare

    example = None if model == TINY else example_directory()

    def trained(number: int, report: TrainReport) -> int:
        with tempfile.TemporaryDirectory(prefix="slime_agl-train-") as work:
            with report.preparing():
                recipe = TINY_TASKS[task](Path(work), number) if example is None else math_feedback(model, example)
            return run_train_demo(
                report, recipe, steps=steps or recipe.steps, minutes=minutes, seed=number, workers=workers
            )

    sys.exit(trained(seed, TrainReport(out)) if seeds == 1 else compare(range(seed, seed + seeds), trained, out))
