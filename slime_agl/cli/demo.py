"""`slime-agl demo`: the main job on a laptop, checked token by token."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from slime_agl.cli.waiting import waiting

TEACHER_TOLERANCE = 1e-4


@click.command()
@click.option("--steps", metavar="N", default=2, show_default=True, help="Training steps.")
@click.option(
    "--groups", metavar="N", default=4, show_default=True, help="Prompts a step (slime's rollout_batch_size)."
)
@click.option("--samples", metavar="N", default=4, show_default=True, help="Executions of each (n_samples_per_prompt).")
@click.option(
    "--model", default="smollm2", show_default=True, help="'smollm2' or a Hugging Face directory, on the CPU."
)
@click.option("--seed", metavar="N", default=0, show_default=True, help="Seed of the engine's sampling.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Write samples.jsonl and metrics.json here."
)
def demo(steps: int, groups: int, samples: int, model: str, seed: int, out: Path | None) -> None:
    """Run examples/math_feedback on a real language model, every token checked.

    Starts the CPU engine and the real sglang-router, calls slime_agl.rollout.generate as slime's manager does, and
    holds every Sample against the engine's own record and against teacher forcing. Exit status 0 only if all agree.
    """
    leave_on_signals()
    # Imported here: torch and transformers take seconds, which `slime-agl --help` need not wait for.
    with waiting("loading libraries"):
        from slime_agl.cli.demo_report import Report
        from slime_agl.cli.demo_run import run_demo

    example = example_directory()
    report = Report(out)
    status = run_demo(
        report,
        example=example,
        steps=steps,
        groups=groups,
        samples=samples,
        model=model,
        seed=seed,
        tolerance=TEACHER_TOLERANCE,
    )
    sys.exit(status)


def example_directory() -> Path:
    """The example's directory. Its parent goes on the import path, because the agent is imported from there."""
    import slime_agl

    examples = Path(slime_agl.__file__).parents[1] / "examples"
    example = examples / "math_feedback"
    if not (example / "agent.py").is_file():
        raise click.ClickException(f"{example} does not exist; the demo runs from a clone of the repository")
    sys.path.insert(0, str(examples))
    return example


def leave_on_signals() -> None:
    """Unwind on SIGTERM as on Ctrl-C, so that the router and the engine end with us.

    SIGINT is set too: a shell may have started us in the background with it ignored.
    """

    def leave(*_: Any) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
