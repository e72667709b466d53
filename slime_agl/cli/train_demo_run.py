"""The training run of `train-demo`, each step checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from slime_agl.cli.train_demo_recipes import Recipe
from slime_agl.cli.train_demo_report import TrainReport
from slime_agl.errors import InvariantError
from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.engine.model import load_model
from slime_agl.local.train.driver import LocalDriver
from slime_agl.local.train.learner import Learner
from slime_agl.local.train.training import train
from slime_agl.rollout import shutdown


def run_train_demo(report: TrainReport, recipe: Recipe, *, steps: int | None, minutes: float | None, seed: int) -> int:
    """Train and report until learned, or `steps` or `minutes` are over.

    Returns the exit status: 1 when an invariant did not hold, or the recipe's target was not reached.
    """
    with _started(report, recipe, seed) as stack:
        driver = LocalDriver(stack.args(**recipe.args))
        learner = Learner(load_model(stack.checkpoint), recipe.learner)
        report.started(recipe, stack.url, steps)
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        try:
            with report.live():
                for done, step in enumerate(train(driver, learner, stack.publish), 1):
                    checked = stack.check(step.rollout.samples)
                    report.step(step, checked=checked, in_flight=stack.in_flight)
                    if report.learned or done == steps or (deadline is not None and time.monotonic() > deadline):
                        break
        except InvariantError as error:
            report.broken(error)
    return report.finish()


@contextmanager
def _started(report: TrainReport, recipe: Recipe, seed: int) -> Iterator[LocalStack]:
    running = recipe.args["rollout_batch_size"] * recipe.args["n_samples_per_prompt"]
    stack = LocalStack(recipe.model, max_running=running, seed=seed)
    with report.preparing():
        stack.__enter__()
    try:
        yield stack
    finally:
        shutdown()
        stack.__exit__(None, None, None)
