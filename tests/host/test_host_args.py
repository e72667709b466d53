"""slime's arguments: read once, checked, and turned into sampling parameters."""

from __future__ import annotations

from argparse import Namespace

import pytest

from slime_agl import host
from slime_agl.errors import ConfigError

RolloutArgs = host.RolloutArgs


def test_a_bare_namespace_reads_as_slimes_defaults():
    args = RolloutArgs.read(Namespace())
    assert (args.rollout_batch_size, args.n_samples_per_prompt, args.over_sampling_batch_size) == (1, 1, 1)
    assert (args.rollout_temperature, args.rollout_top_p, args.rollout_top_k) == (1.0, 1.0, -1)
    assert args.advantage_estimator == "grpo" and args.concurrency == 512
    assert args.eval_datasets == () and args.apply_chat_template_kwargs == {}


def test_default_args_read_back_unchanged():
    raw = host.default_args(rollout_batch_size=4, n_samples_per_prompt=8, agl={"agent": "a.b"})
    args = RolloutArgs.read(raw)
    assert args.raw is raw and args.agl == {"agent": "a.b"}
    for name in ("rollout_batch_size", "n_samples_per_prompt", "over_sampling_batch_size", "hf_checkpoint", "rm_type"):
        assert getattr(args, name) == getattr(raw, name)


def test_what_is_unset_follows_what_slime_lets_it_follow():
    args = RolloutArgs.read(Namespace(rollout_batch_size=3, rollout_max_context_len=64, reward_key="score"))
    assert args.over_sampling_batch_size == 3
    assert args.eval_max_context_len == 64
    assert args.eval_reward_key == "score"
    raw = host.default_args(
        rollout_max_context_len=64, eval_max_context_len=32, num_steps_per_rollout=2, rollout_batch_size=4
    )
    assert (raw.rollout_max_prompt_len, raw.eval_max_context_len, raw.global_batch_size) == (63, 32, 2)
    assert raw.eval_function_path == raw.rollout_function_path == "slime_agl.rollout.generate"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rollout_batch_size": 0}, "--rollout-batch-size is 0, it must be a whole number of at least 1"),
        ({"n_samples_per_prompt": 0}, "--n-samples-per-prompt is 0"),
        ({"rollout_max_response_len": 0}, "--rollout-max-response-len is 0"),
        (
            {"rollout_batch_size": 4, "over_sampling_batch_size": 2},
            "is 2, it must be at least --rollout-batch-size, which is 4",
        ),
        ({"rollout_temperature": 0.0}, "--rollout-temperature is 0.0, it must be above 0"),
        ({"rollout_temperature": float("nan")}, "--rollout-temperature is nan"),
        ({"rollout_temperature": "hot"}, "--rollout-temperature is 'hot', it must be a number"),
        ({"rollout_batch_size": 2.5}, "--rollout-batch-size is 2.5, it must be a whole number"),
        ({"rollout_top_p": 0.0}, "--rollout-top-p is 0.0"),
        ({"rollout_top_k": 0}, "--rollout-top-k is 0"),
        (
            {"rollout_max_context_len": 8, "rollout_max_prompt_len": 8},
            "--rollout-max-prompt-len is 8, it must be below",
        ),
        ({"apply_chat_template_kwargs": [1]}, "must be a JSON object"),
    ],
)
def test_values_no_rollout_can_work_with_are_refused_by_their_flag(values, message):
    with pytest.raises(ConfigError, match=message):
        RolloutArgs.read(Namespace(**values))


def test_a_call_without_arguments_is_refused():
    with pytest.raises(ConfigError, match="args is None"):
        RolloutArgs.read(None)


def test_models_beside_the_trained_one_are_frozen():
    routers = {"actor": ("10.0.0.1", 3000), "ref": ("10.0.0.2", 3001), "judge": ["[::1]", 3002]}
    args = RolloutArgs.read(
        Namespace(sglang_router_ip="10.0.0.1", sglang_router_port=3000, sglang_model_routers=routers)
    )
    assert args.frozen_models == {"ref": "http://10.0.0.2:3001/v1", "judge": "http://[::1]:3002/v1"}
    assert RolloutArgs.read(Namespace()).frozen_models == {}


def test_the_router_is_slimes():
    args = RolloutArgs.read(Namespace(sglang_router_ip="[::1]", sglang_router_port=3000))
    assert args.router_url == "http://[::1]:3000"
    with pytest.raises(ConfigError, match="--sglang-router-port is None"):
        _ = RolloutArgs.read(Namespace(sglang_router_ip="127.0.0.1")).router_url


def test_concurrency_counts_engines_and_never_falls_to_zero():
    assert RolloutArgs.read(Namespace(sglang_server_concurrency=8, rollout_num_engines=3)).concurrency == 24
    assert RolloutArgs.read(Namespace(rollout_num_gpus=8, rollout_num_gpus_per_engine=4)).rollout_num_engines == 2
    assert RolloutArgs.read(Namespace(rollout_num_gpus=0, sglang_server_concurrency=8)).concurrency == 8


def test_training_samples_as_slime_does():
    args = RolloutArgs.read(Namespace(rollout_temperature=0.7, rollout_max_response_len=32, rollout_stop=["\n"]))
    assert args.sampling_params(seed_offset=1) == {
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 32,
        "stop": ["\n"],
        "stop_token_ids": None,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    assert args.sampling_params() is not args.sampling_params()


def test_seeds_and_top_p_sets_are_asked_for_when_slime_would():
    args = RolloutArgs.read(Namespace(sglang_enable_deterministic_inference=True, rollout_seed=10, rollout_top_p=0.9))
    assert args.sampling_params(seed_offset=3)["sampling_seed"] == 13
    assert "sampling_seed" not in args.sampling_params()
    assert args.sampling_params()["custom_params"] == {"return_top_p_token_ids": True}


def test_evaluation_samples_by_the_dataset_then_by_training():
    raw = host.default_args(
        rollout_stop=["\n"],
        eval_temperature=0.5,
        eval_prompt_data=["a", "a.jsonl"],
        sglang_enable_deterministic_inference=True,
    )
    args = RolloutArgs.read(raw)
    (dataset,) = args.eval_datasets
    params = args.eval_sampling_params(dataset, seed_offset=2)
    assert (params["temperature"], params["stop"], params["sampling_seed"]) == (0.5, ["\n"], 44)
    assert not {"repetition_penalty", "min_new_tokens", "custom_params"} & set(params)
    dataset.repetition_penalty, dataset.min_new_tokens, dataset.no_stop_trim = 1.1, 2, False
    params = args.eval_sampling_params(dataset)
    assert (params["repetition_penalty"], params["min_new_tokens"], params["no_stop_trim"]) == (1.1, 2, False)


def test_evaluation_data_must_be_pairs():
    with pytest.raises(ConfigError, match="has 1 values, it takes pairs"):
        host.default_args(eval_prompt_data=["a.jsonl"])
