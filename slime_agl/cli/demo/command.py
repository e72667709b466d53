"""`slime-agl demo`: the whole path on a laptop, checked token by token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from slime_agl.cli.demo.example import example_directory, unwind_on_signals
from slime_agl.cli.waiting import waiting
from slime_agl.cli.workers import workers_option


@click.command(short_help="Run an example on a real model and check every token.")
@click.option("--steps", metavar="N", default=2, show_default=True, help="Training steps.")
@click.option(
    "--groups", metavar="N", default=4, show_default=True, help="Prompts per step (slime's rollout_batch_size)."
)
@click.option(
    "--samples", metavar="N", default=4, show_default=True, help="Executions per prompt (n_samples_per_prompt)."
)
@click.option(
    "--model", default="smollm2", show_default=True, help="'smollm2' or a Hugging Face directory, on the CPU."
)
@click.option("--seed", metavar="N", default=0, show_default=True, help="Seed of the engine's sampling.")
@workers_option
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Write samples.jsonl and metrics.json here."
)
@click.option(
    "--record", type=click.Path(file_okay=False, path_type=Path), help="Keep the record here, for inspect and watch."
)
def demo(out: Path | None, **plan: Any) -> None:
    """Run examples/math_feedback on a real language model and check every token.

    Starts the CPU engine and the real sglang-router, calls slime_agl.rollout.generate as slime's manager does, and
    compares every Sample with the engine's own record and with teacher forcing. Exit status 0 only if all agree.
    """
    unwind_on_signals()
    # Imported late: torch and transformers take seconds, and `slime-agl --help` should not.
    with waiting("loading libraries"):
        from slime_agl.cli.demo.report import DemoReport
        from slime_agl.cli.demo.run import DemoPlan, run_demo

    example = example_directory()
    sys.exit(run_demo(DemoReport(out), example, DemoPlan(**plan)))
