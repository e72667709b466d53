"""Run the training of `train-demo`, each step checked."""

from __future__ import annotations

import time
from contextlib import ExitStack

from slime_agl.cli.train_demo.report import TrainReport
from slime_agl.cli.workers import in_workers
from slime_agl.errors import InvariantError
from slime_agl.local.demo.trial import Trial
from slime_agl.local.train.recipes import Recipe
from slime_agl.rollout import shutdown


def run_train_demo(
    report: TrainReport, recipe: Recipe, *, steps: int | None, minutes: float | None, seed: int, workers: int | None
) -> int:
    """Train and report until the target, `steps` or `minutes` is reached.

    Returns the exit status: 1 if an invariant is broken or the recipe's target is missed.
    """
    with ExitStack() as stack:
        with report.preparing():
            trial = stack.enter_context(Trial(recipe, seed=seed))
        stack.callback(shutdown)
        report.started(recipe, trial.url, steps, workers)
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        try:
            with report.live():
                for done, found in enumerate(trial.steps(in_workers(recipe.args["agl"], workers)), 1):
                    report.step(found.step, checked=found.checked, in_flight=found.in_flight)
                    if report.learned or done == steps or (deadline is not None and time.monotonic() > deadline):
                        break
        except InvariantError as error:
            report.broken(error)
    return report.finish()
