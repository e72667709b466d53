"""`slime-agl train-demo`: the whole loop on a laptop, a policy that learns."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from slime_agl.cli.demo import example_directory, leave_on_signals

TINY = "tiny"


@click.command("train-demo")
@click.option(
    "--model",
    default=TINY,
    show_default=True,
    help="'tiny' (made on the spot), 'smollm2' or a Hugging Face directory; the last two train examples/math_feedback.",
)
@click.option("--steps", type=click.IntRange(1), help="Most training steps; default 60 for 'tiny', else no bound.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Most minutes of training; default no bound.")
@click.option("--seed", default=0, show_default=True, help="Seed of the tiny model and of the engine's sampling.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Write metrics.jsonl and curve.png there."
)
def train_demo(model: str, steps: int | None, minutes: float | None, seed: int, out: Path | None) -> None:
    """Train a small model on the CPU, through the generate that slime calls.

    'tiny' has to call a tool before it can answer, and training ends when the mean reward of five steps is above 0.9.
    Each step holds every Sample against the engine's record, and the rollout's logprobs against the learner's.
    Exit status 0 only if all agree and, with 'tiny', the model has learned.
    """
    leave_on_signals()
    os.environ.setdefault("TQDM_DISABLE", "1")  # generate's progress bars would write into the live display
    # Imported here: torch and transformers take seconds, which `slime-agl --help` need not wait for.
    from slime_agl.cli.train_demo_recipes import math_feedback, tiny
    from slime_agl.cli.train_demo_report import TrainReport
    from slime_agl.cli.train_demo_run import run_train_demo

    example = None if model == TINY else example_directory()
    report = TrainReport(out)
    with tempfile.TemporaryDirectory(prefix="slime_agl-train-") as work:
        with report.preparing():
            recipe = tiny(Path(work), seed) if example is None else math_feedback(model, example)
        status = run_train_demo(report, recipe, steps=steps or recipe.steps, minutes=minutes, seed=seed)
    sys.exit(status)
