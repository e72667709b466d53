"""The training loop of slime's train.py: roll out, learn, publish the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from slime_agl.errors import InvariantError
from slime_agl.local.train.batch import Samples
from slime_agl.local.train.driver import LocalDriver, StepResult
from slime_agl.local.train.learner import Learner, Update

Publish = Callable[[dict[str, torch.Tensor], str], None]
"""Takes weights and their version; once it returns, the engine samples with them."""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A rollout and its update. reward: mean over executions. learn_seconds: of the update alone."""

    rollout: StepResult
    update: Update
    reward: float
    learn_seconds: float


def train(driver: LocalDriver, learner: Learner, publish: Publish, *, staleness: int = 0) -> Iterator[TrainedStep]:
    """Train step after step, endlessly; step n samples with weights of version 'n', or up to `staleness` older ones.

    Raises:
        InvariantError: slime could not train on a batch, tokens were sampled by another version's weights, or the
            learner cannot reproduce their logprobs.
    """
    step = 0
    publish(learner.state(), str(step))
    while True:
        rollout = driver.step(step)
        _require_version(rollout.samples, step, staleness)
        began = time.perf_counter()
        update = learner.learn(rollout.train_data)
        learn_seconds = time.perf_counter() - began
        step += 1
        publish(learner.state(), str(step))
        yield TrainedStep(rollout, update, mean_reward(rollout.groups), learn_seconds)


def mean_reward(groups: list[list[Any]]) -> float:
    """Return the mean over executions; each counts once, however many samples it has."""
    first = [entry[0] if isinstance(entry, list) else entry for group in groups for entry in group]
    return sum(sample.reward for sample in first) / len(first)


def _require_version(samples: Samples, step: int, staleness: int) -> None:
    allowed = {str(version) for version in range(step - staleness, step + 1)}
    for sample in samples:
        if set(sample.weight_versions) - allowed:
            raise InvariantError(
                f"sample {sample.index} was sampled by weights of version {', '.join(sample.weight_versions)} in step "
                f"{step}; each step has to sample with the weights that the one before it published"
                f"{staleness and f', or with those of {staleness} steps before' or ''}"
            )
