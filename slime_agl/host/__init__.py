"""Everything this package knows about slime, with stand-ins for machines without it.

Names resolve on first use: to slime's own objects if they can be imported, else to stand-ins with the same fields,
defaults and behaviour. Importing this package imports neither slime nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slime_agl.host.pieces import PIECES, resolve, slime_available, where

if TYPE_CHECKING:
    from slime_agl.host.args import RolloutArgs
    from slime_agl.host.data_source import RolloutDataSource, RolloutDataSourceWithBuffer
    from slime_agl.host.dataset import Dataset, load_processor
    from slime_agl.host.defaults import default_args
    from slime_agl.host.estimators import ensure_reward_post_process
    from slime_agl.host.eval_config import EvalDatasetConfig, build_eval_dataset_configs
    from slime_agl.host.evaluation import EvalPrompts, eval_entry
    from slime_agl.host.filters import (
        DynamicFilterOutput,
        MetricGatherer,
        call_dynamic_filter,
        check_reward_nonzero_std,
        should_drop_dynamic_filter_output,
    )
    from slime_agl.host.loading import load_function, load_object
    from slime_agl.host.loop_state import current_step, is_aborting
    from slime_agl.host.media import join_tensors
    from slime_agl.host.outputs import RolloutFnEvalOutput, RolloutFnTrainOutput, call_rollout_fn
    from slime_agl.host.reward_hub import async_rm, batched_async_rm
    from slime_agl.host.rewards import has_reward_option
    from slime_agl.host.sample import Sample
    from slime_agl.host.sample_hooks import apply_rollout_sample_hooks
    from slime_agl.host.source import source_of

_OURS = {
    "EvalPrompts": "evaluation",
    "RolloutArgs": "args",
    "default_args": "defaults",
    "ensure_reward_post_process": "estimators",
    "eval_entry": "evaluation",
    "join_tensors": "media",
    "current_step": "loop_state",
    "has_reward_option": "rewards",
    "is_aborting": "loop_state",
    "load_object": "loading",
    "source_of": "source",
}

__all__ = [
    "Dataset",
    "DynamicFilterOutput",
    "EvalDatasetConfig",
    "EvalPrompts",
    "MetricGatherer",
    "RolloutArgs",
    "RolloutDataSource",
    "RolloutDataSourceWithBuffer",
    "RolloutFnEvalOutput",
    "RolloutFnTrainOutput",
    "Sample",
    "apply_rollout_sample_hooks",
    "async_rm",
    "batched_async_rm",
    "build_eval_dataset_configs",
    "call_dynamic_filter",
    "call_rollout_fn",
    "check_reward_nonzero_std",
    "current_step",
    "default_args",
    "ensure_reward_post_process",
    "eval_entry",
    "has_reward_option",
    "join_tensors",
    "is_aborting",
    "load_function",
    "load_object",
    "load_processor",
    "should_drop_dynamic_filter_output",
    "slime_available",
    "source_of",
    "where",
]


def __getattr__(name: str) -> Any:
    if name in PIECES:
        return resolve(name)
    if name in _OURS:
        return getattr(importlib.import_module(f"slime_agl.host.{_OURS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *PIECES, *_OURS})
