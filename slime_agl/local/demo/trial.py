"""A training of a recipe on this machine, each of its steps checked against engine, weights and teacher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple

from slime_agl.local.demo.desk import Desk
from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.engine.model import load_model
from slime_agl.local.train.driver import LocalDriver
from slime_agl.local.train.learner import Learner, LearnerSettings
from slime_agl.local.train.recipes import Recipe
from slime_agl.local.train.training import TrainedStep, train
from slime_agl.local.train.versions import Versions


class CheckedStep(NamedTuple):
    """checked: trained tokens that the engine recorded itself. in_flight: requests at the engine after the step."""

    step: TrainedStep
    checked: int
    in_flight: int


class Trial:
    """Context manager: the engine of a recipe, and its teacher. The caller shuts the rollout's runtime down.

    seed: of the engine's sampling.
    """

    def __init__(self, recipe: Recipe, *, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._stack = ExitStack()

    def __enter__(self) -> Trial:
        recipe = self._recipe
        running = recipe.args["rollout_batch_size"] * recipe.args["n_samples_per_prompt"]
        with self._stack:
            self._local = self._stack.enter_context(
                LocalStack(recipe.model, max_running=running, seed=self._seed, lasting=recipe.staleness > 0)
            )
            self._desk = None if recipe.teacher is None else self._stack.enter_context(Desk(recipe.teacher))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """Address of the router."""
        return self._local.url

    def steps(
        self, section: Mapping[str, Any] | None = None, learner: LearnerSettings | None = None, **more: object
    ) -> Iterator[CheckedStep]:
        """Train from the start, step after step, endlessly.

        section: replaces the recipe's `agl:`. learner: replaces its settings. more: of slime's arguments.

        Raises:
            InvariantError: as `train`; or a Sample is not what the engine recorded, its logprobs are not those of the
                weights that it names, or its teacher's are not those of a second computation.
        """
        recipe, local, desk = self._recipe, self._local, self._desk
        settings = learner or recipe.learner
        agl = {**(recipe.args["agl"] if section is None else section)}
        if desk is not None:
            agl.setdefault("teacher", desk.url)
        driver = LocalDriver(local.args(**{**recipe.args, **more, "agl": agl}))
        versions = Versions(load_model(local.checkpoint), local.publish, kept=recipe.staleness + 2)
        publish = versions.publish if recipe.staleness else local.publish
        pupil = Learner(load_model(local.checkpoint), settings)
        for step in train(driver, pupil, publish, staleness=recipe.staleness):
            samples = step.rollout.samples
            checked = local.check(samples)
            if recipe.staleness:
                versions.check(samples, settings.temperature)
            if desk is not None:
                desk.check(samples)
            yield CheckedStep(step, checked, 0 if recipe.staleness else local.in_flight)
