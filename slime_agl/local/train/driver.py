"""Drive a rollout function as slime's manager does, on a machine without slime."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slime_agl import host
from slime_agl.errors import InvariantError
from slime_agl.host.defaults import DATA_SOURCE
from slime_agl.local.train.batch import Nest, Samples, TrainData, flatten, train_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One training step.

    samples: flat, in order. groups: nested as returned. seconds: of the rollout alone.
    """

    rollout_id: int
    samples: Samples
    groups: list[list[Nest]]
    metrics: Mapping[str, Any]
    train_data: TrainData
    seconds: float


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One evaluation. data: dataset name -> {"rewards", "truncated", "samples"}."""

    rollout_id: int
    data: dict[str, dict[str, list]]
    metrics: Mapping[str, Any]
    seconds: float


class LocalDriver:
    """Owns a data source, and calls the functions that `args` names by path.

    args: a namespace as made by `host.default_args`. data_source: replaces the one that args name.

    Raises:
        ConfigError: a path of args cannot be loaded.
    """

    def __init__(self, args: Namespace, data_source: object = None) -> None:
        self.args = args
        self.data_source = _data_source_class(args)(args) if data_source is None else data_source
        self._generate = _load(args, "rollout_function_path")
        self._evaluate = _load(args, "eval_function_path") or self._generate
        # The path is read here, not per step: setting it later has no effect in slime either.
        self._post_process = _load(args, "custom_reward_post_process_path")

    def step(self, rollout_id: int) -> StepResult:
        """Generate one batch, check it, and convert it to training data.

        Raises:
            InvariantError: slime could not train on the batch.
        """
        output, seconds = self._call(self._generate, rollout_id, evaluation=False)
        samples = flatten(self.args, output.samples)
        return StepResult(
            rollout_id=rollout_id,
            samples=samples,
            groups=output.samples,
            metrics=output.metrics or {},
            train_data=train_batch(self.args, samples, self._post_process),
            seconds=seconds,
        )

    def evaluate(self, rollout_id: int) -> EvalResult:
        """Run the evaluation datasets.

        Raises:
            InvariantError: the numbers of a dataset's rewards, truncated flags and samples differ.
        """
        output, seconds = self._call(self._evaluate, rollout_id, evaluation=True)
        for name, entry in output.data.items():
            lengths = {key: len(entry[key]) for key in ("rewards", "truncated", "samples")}
            if len(set(lengths.values())) != 1:
                raise InvariantError(f"evaluation of {name} returned lists of different lengths: {lengths}")
        return EvalResult(rollout_id, output.data, output.metrics or {}, seconds)

    def _call(self, fn: Callable, rollout_id: int, *, evaluation: bool) -> tuple[Any, float]:
        started = time.perf_counter()
        output = host.call_rollout_fn(fn, self.args, rollout_id, self.data_source, evaluation=evaluation)
        return output, time.perf_counter() - started


def _data_source_class(args: Namespace) -> Callable[[Namespace], object]:
    if args.data_source_path == DATA_SOURCE:
        return host.RolloutDataSourceWithBuffer
    return _load(args, "data_source_path")


def _load(args: Namespace, name: str) -> Any:
    path = getattr(args, name)
    return None if path is None else host.load_object(path, key="--" + name.replace("_", "-"))
