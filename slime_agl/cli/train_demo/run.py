"""Run the training of `train-demo`, each step checked."""

from __future__ import annotations

import time
from contextlib import ExitStack

from slime_agl.cli.train_demo.recipes import Recipe
from slime_agl.cli.train_demo.report import TrainReport
from slime_agl.cli.workers import in_workers
from slime_agl.errors import InvariantError
from slime_agl.local.demo.desk import Desk
from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.engine.model import load_model
from slime_agl.local.train.driver import LocalDriver
from slime_agl.local.train.learner import Learner
from slime_agl.local.train.training import train
from slime_agl.local.train.versions import Versions
from slime_agl.rollout import shutdown


def run_train_demo(
    report: TrainReport, recipe: Recipe, *, steps: int | None, minutes: float | None, seed: int, workers: int | None
) -> int:
    """Train and report until the target, `steps` or `minutes` is reached.

    Returns the exit status: 1 if an invariant is broken or the recipe's target is missed.
    """
    running = recipe.args["rollout_batch_size"] * recipe.args["n_samples_per_prompt"]
    stale = recipe.staleness > 0
    with ExitStack() as stack:
        with report.preparing():
            local = stack.enter_context(LocalStack(recipe.model, max_running=running, seed=seed, lasting=stale))
            desk = None if recipe.teacher is None else stack.enter_context(Desk(recipe.teacher))
        stack.callback(shutdown)
        section = in_workers(recipe.args["agl"], workers) | ({} if desk is None else {"teacher": desk.url})
        driver = LocalDriver(local.args(**{**recipe.args, "agl": section}))
        learner = Learner(load_model(local.checkpoint), recipe.learner)
        versions = Versions(load_model(local.checkpoint), local.publish, kept=recipe.staleness + 2)
        report.started(recipe, local.url, steps, workers)
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        try:
            with report.live():
                publish = versions.publish if stale else local.publish
                for done, step in enumerate(train(driver, learner, publish, staleness=recipe.staleness), 1):
                    samples = step.rollout.samples
                    checked = local.check(samples)
                    if stale:
                        versions.check(samples, recipe.learner.temperature)
                    if desk is not None:
                        desk.check(samples)
                    report.step(step, checked=checked, in_flight=0 if stale else local.in_flight)
                    if report.learned or done == steps or (deadline is not None and time.monotonic() > deadline):
                        break
        except InvariantError as error:
            report.broken(error)
    return report.finish()
