"""slime's parsed arguments with their defaults, for runs without slime."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from slime_agl.errors import ConfigError
from slime_agl.host.pieces import resolve

DATA_SOURCE = "slime.rollout.data_source.RolloutDataSourceWithBuffer"
ROLLOUT_FUNCTION = "slime_agl.rollout.generate"
CUSTOM_GENERATE = "slime_agl.generate.generate"
REWARD_POST_PROCESS = "slime_agl.reward.normalize_rewards"
CUSTOM_RM = "slime_agl.reward.custom_rm"
SLIMES_DISTILLATION = "slime.rollout.on_policy_distillation."
GAE, TURNS = "slime_agl.advantage.gae", "slime_agl.advantage.turns"
SEGMENT_REDUCER = "slime_agl.reducers.segment"

_DEFAULTS: dict[str, Any] = {
    "rollout_function_path": ROLLOUT_FUNCTION,
    "eval_function_path": None,
    "data_source_path": DATA_SOURCE,
    "custom_generate_function_path": None,
    "custom_rm_path": None,
    "custom_reward_post_process_path": REWARD_POST_PROCESS,
    "custom_convert_samples_to_train_data_path": None,
    "dynamic_sampling_filter_path": None,
    "buffer_filter_path": None,
    "rollout_sample_filter_path": None,
    "rollout_all_samples_process_path": None,
    "hf_checkpoint": None,
    "load": None,
    "save": None,
    "dump_details": None,
    "num_rollout": None,
    "num_epoch": None,
    "rollout_batch_size": 1,
    "n_samples_per_prompt": 1,
    "global_batch_size": None,
    "num_steps_per_rollout": None,
    "over_sampling_batch_size": None,
    "rollout_temperature": 1.0,
    "rollout_top_p": 1.0,
    "rollout_top_k": -1,
    "rollout_max_response_len": None,
    "rollout_max_context_len": None,
    "rollout_max_prompt_len": None,
    "rollout_stop": None,
    "rollout_stop_token_ids": None,
    "rollout_skip_special_tokens": False,
    "rollout_shuffle": False,
    "rollout_seed": 42,
    "rollout_global_dataset": True,
    "partial_rollout": False,
    "mask_offpolicy_in_partial_rollout": False,
    "use_rollout_routing_replay": False,
    "prompt_data": None,
    "input_key": "input",
    "label_key": None,
    "metadata_key": "metadata",
    "tool_key": "tools",
    "multimodal_keys": None,
    "apply_chat_template": False,
    "rm_type": None,
    "rm_url": None,
    "group_rm": False,
    "reward_key": None,
    "eval_reward_key": None,
    "advantage_estimator": "grpo",
    "rewards_normalization": True,
    "grpo_std_normalization": True,
    "eval_interval": None,
    "eval_prompt_data": None,
    "eval_config": None,
    "eval_input_key": None,
    "eval_label_key": None,
    "eval_tool_key": None,
    "n_samples_per_eval_prompt": 1,
    "eval_temperature": None,
    "eval_top_p": None,
    "eval_top_k": None,
    "eval_max_response_len": None,
    "eval_max_prompt_len": None,
    "eval_max_context_len": None,
    "eval_min_new_tokens": None,
    "sglang_router_ip": None,
    "sglang_router_port": None,
    "sglang_model_routers": None,
    "sglang_config": None,
    "sglang_server_concurrency": 512,
    "sglang_dp_size": 1,
    "sglang_enable_deterministic_inference": False,
    "sglang_speculative_algorithm": None,
    "sglang_tool_call_parser": None,
    "sglang_reasoning_parser": None,
    "rollout_num_gpus": None,
    "rollout_num_gpus_per_engine": 1,
    "rollout_external_engine_addrs": None,
    "custom_config_path": None,
    "ci_test": False,
    "log_passrate": False,
    "debug_rollout_only": False,
    "debug_train_only": False,
    "agl": None,
}


def default_args(**overrides: Any) -> Namespace:
    """slime's parsed arguments, with `overrides` as flags or --custom-config-path would set them.

    slime requires rollout_batch_size; the default here is 1. rollout_function_path and custom_reward_post_process_path
    default to this package's. eval_prompt_data (name, path, name, path, ...) becomes eval_datasets.
    """
    args = Namespace(**{**_DEFAULTS, "rollout_sample_hook_path": [], "apply_chat_template_kwargs": {}, **overrides})
    if args.over_sampling_batch_size is None:
        args.over_sampling_batch_size = args.rollout_batch_size
    if args.n_samples_per_prompt == 1:
        args.grpo_std_normalization = False
    if args.num_steps_per_rollout is not None:
        args.global_batch_size = args.rollout_batch_size * args.n_samples_per_prompt // args.num_steps_per_rollout
    if args.rollout_max_context_len is not None and args.rollout_max_prompt_len is None:
        args.rollout_max_prompt_len = args.rollout_max_context_len - 1
    for name, fallback in (
        ("eval_function_path", "rollout_function_path"),
        ("eval_reward_key", "reward_key"),
        ("eval_max_context_len", "rollout_max_context_len"),
    ):
        if getattr(args, name) is None:
            setattr(args, name, getattr(args, fallback))
    if "eval_datasets" not in overrides:
        args.eval_datasets = resolve("build_eval_dataset_configs")(args, _named_paths(args.eval_prompt_data), {})
    return args


def _named_paths(pairs: list[str] | None) -> list[dict[str, str]]:
    pairs = list(pairs or ())
    if len(pairs) % 2:
        raise ConfigError(f"--eval-prompt-data has {len(pairs)} values, it takes pairs of a name and a path")
    return [{"name": name, "path": path} for name, path in zip(pairs[::2], pairs[1::2], strict=True)]
