"""Dynamic sampling filters; stands in for `slime.rollout.filter_hub`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_SPREAD = 1e-6


@dataclass
class DynamicFilterOutput:
    """A filter's verdict on a group. keep_when_insufficient: keep it anyway if dropping would leave too few."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


def should_drop_dynamic_filter_output(
    output: DynamicFilterOutput, *, remaining_batch_size: int, target_data_size: int
) -> bool:
    """Apply a verdict. remaining_batch_size: groups kept or running; target_data_size: groups that a step needs."""
    spare = remaining_batch_size > target_data_size
    return not output.keep and (spare or not output.keep_when_insufficient)


def call_dynamic_filter(fn: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> DynamicFilterOutput:
    """Call a filter, which may return a plain truth value; without a filter, keep everything."""
    if fn is None:
        return DynamicFilterOutput(keep=True)
    output = fn(*args, **kwargs)
    return output if isinstance(output, DynamicFilterOutput) else DynamicFilterOutput(keep=output)


class MetricGatherer:
    """Counts dropped groups by the reason their filter gave."""

    def __init__(self) -> None:
        self._drops: Counter[str] = Counter()

    def on_dynamic_filter_drop(self, reason: str | None) -> None:
        if reason:
            self._drops[reason] += 1

    def collect(self) -> dict[str, int]:
        return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in self._drops.items()}


def check_reward_nonzero_std(args: Any, samples: list[Any], **kwargs: Any) -> DynamicFilterOutput:
    """Keep a group whose rewards differ; a group of one is dropped."""
    rewards = [sample.get_reward_value(args) for sample in samples]
    keep = len(rewards) > 1 and float(np.std(rewards, ddof=1)) > LEAST_SPREAD
    return DynamicFilterOutput(keep=keep, reason=None if keep else f"zero_std_{round(rewards[0], 1)}")


def check_reward_nonzero_std_with_fallback(args: Any, samples: list[Any], **kwargs: Any) -> DynamicFilterOutput:
    """The same, but prefer a group with equal rewards to another round of sampling."""
    output = check_reward_nonzero_std(args, samples, **kwargs)
    output.keep_when_insufficient = True
    return output
