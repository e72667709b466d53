"""slime's arguments, read once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from slime_agl.errors import ConfigError
from slime_agl.host.served import trained_address
from slime_agl.host.trainer import TrainerArgs

_SIZES = (
    "rollout_batch_size",
    "n_samples_per_prompt",
    "over_sampling_batch_size",
    "rollout_max_response_len",
    "rollout_max_context_len",
    "rollout_max_prompt_len",
    "sglang_server_concurrency",
)
_FALLBACKS = {
    "over_sampling_batch_size": "rollout_batch_size",
    "eval_max_context_len": "rollout_max_context_len",
    "eval_reward_key": "reward_key",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutArgs:
    """The arguments that a rollout function honours, with slime's names and defaults.

    raw: slime's own namespace, for user hooks. Lengths are in tokens. rollout_num_engines is at least 1.
    rollout_max_response_len None: only the context limits a turn. sglang_router_ip and sglang_router_port are those of
    the trained model, which under --sglang-config need not be slime's default.
    """

    raw: Any
    rollout_batch_size: int = 1
    n_samples_per_prompt: int = 1
    over_sampling_batch_size: int = 1
    rollout_temperature: float = 1.0
    rollout_top_p: float = 1.0
    rollout_top_k: int = -1
    rollout_max_response_len: int | None = None
    rollout_max_context_len: int | None = None
    rollout_max_prompt_len: int | None = None
    rollout_stop: Any = None
    rollout_stop_token_ids: Any = None
    rollout_skip_special_tokens: bool = False
    rollout_seed: int = 42
    rollout_global_dataset: bool = True
    num_rollout: int | None = None
    colocate: bool = False
    sglang_enable_deterministic_inference: bool = False
    dynamic_sampling_filter_path: str | None = None
    rollout_sample_filter_path: str | None = None
    rollout_all_samples_process_path: str | None = None
    rollout_sample_hook_path: tuple[str, ...] = ()
    custom_rm_path: str | None = None
    rm_type: str | None = None
    group_rm: bool = False
    reward_key: str | None = None
    eval_reward_key: str | None = None
    custom_reward_post_process_path: str | None = None
    custom_generate_function_path: str | None = None
    advantage_estimator: str = "grpo"
    rewards_normalization: bool = True
    grpo_std_normalization: bool = True
    partial_rollout: bool = False
    mask_offpolicy_in_partial_rollout: bool = False
    use_rollout_routing_replay: bool = False
    num_layers: int | None = None
    moe_router_topk: int | None = None
    router_policy: str | None = None
    sglang_router_ip: str | None = None
    sglang_router_port: int | None = None
    sglang_model_routers: Mapping[str, tuple[str, int]] | None = None
    sglang_server_concurrency: int = 512
    rollout_num_engines: int = 1
    hf_checkpoint: str | None = None
    chat_template_path: str | None = None
    apply_chat_template_kwargs: Mapping[str, Any] | None = None
    sglang_tool_call_parser: str | None = None
    sglang_reasoning_parser: str | None = None
    eval_datasets: tuple[Any, ...] = ()
    eval_max_context_len: int | None = None
    eval_max_prompt_len: int | None = None
    eval_min_new_tokens: int | None = None
    ci_test: bool = False
    log_passrate: bool = False
    agl: Any = None

    @classmethod
    def read(cls, args: Any) -> RolloutArgs:
        """Read slime's namespace; a missing argument, or None, gets slime's default.

        Raises:
            ConfigError: a value is unusable (named by its flag), or --sglang-config does not have exactly one model
                that gets weights.
        """
        if args is None:
            raise ConfigError("the rollout function was called without slime's arguments (args is None)")
        found = {item.name: getattr(args, item.name, None) for item in fields(cls) if item.name != "raw"}
        values = {name: value for name, value in found.items() if value is not None}
        for name in ("rollout_sample_hook_path", "eval_datasets"):
            values[name] = tuple(values.get(name) or ())
        values["rollout_num_engines"] = _engines(args)
        if (address := trained_address(args)) is not None:
            values["sglang_router_ip"], values["sglang_router_port"] = address
        values["apply_chat_template_kwargs"] = _kwargs(values.get("apply_chat_template_kwargs"))
        for name, fallback in _FALLBACKS.items():
            if name not in values and fallback in values:
                values[name] = values[fallback]
        return cls(raw=args, **values)

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_sampling()

    def _check_sizes(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{flag(name)} is {value!r}, it must be a whole number of at least 1")
        if self.over_sampling_batch_size < self.rollout_batch_size:
            raise ConfigError(
                f"--over-sampling-batch-size is {self.over_sampling_batch_size}, it must be at least "
                f"--rollout-batch-size, which is {self.rollout_batch_size}"
            )
        prompt, context = self.rollout_max_prompt_len, self.rollout_max_context_len
        if prompt is not None and context is not None and prompt >= context:
            raise ConfigError(
                f"--rollout-max-prompt-len is {prompt}, it must be below --rollout-max-context-len, which is {context}"
            )

    def _check_sampling(self) -> None:
        for name in ("rollout_temperature", "rollout_top_p", "rollout_top_k"):
            if not isinstance(getattr(self, name), int | float):
                raise ConfigError(f"{flag(name)} is {getattr(self, name)!r}, it must be a number")
        if not self.rollout_temperature > 0:
            raise ConfigError(
                f"--rollout-temperature is {self.rollout_temperature}, it must be above 0: "
                "greedy decoding is no policy that can be trained"
            )
        if not 0 < self.rollout_top_p <= 1:
            raise ConfigError(f"--rollout-top-p is {self.rollout_top_p}, it must be above 0 and at most 1")
        if self.rollout_top_k != -1 and self.rollout_top_k < 1:
            raise ConfigError(f"--rollout-top-k is {self.rollout_top_k}, it must be at least 1, or -1 for no limit")

    @property
    def trainer(self) -> TrainerArgs:
        """The arguments of slime's trainer."""
        return TrainerArgs.read(self.raw)

    @property
    def router_url(self) -> str:
        """Base URL of slime's router. Raises ConfigError if slime has not set it."""
        if self.sglang_router_ip is None or self.sglang_router_port is None:
            raise ConfigError(
                f"slime's router is not known: --sglang-router-ip is {self.sglang_router_ip}, --sglang-router-port is "
                f"{self.sglang_router_port}; slime sets them when it starts engines, otherwise pass both"
            )
        return f"http://{self.sglang_router_ip}:{self.sglang_router_port}"

    @property
    def frozen_models(self) -> dict[str, str]:
        """OpenAI-compatible endpoints of the served models that are not trained, by name."""
        trained = (self.sglang_router_ip, self.sglang_router_port)
        routers = {name: tuple(address) for name, address in (self.sglang_model_routers or {}).items()}
        return {name: f"http://{host}:{port}/v1" for name, (host, port) in routers.items() if (host, port) != trained}

    @property
    def experts_width(self) -> int | None:
        """Number of routed experts per token, None if they are not replayed.

        Raises:
            ConfigError: they are, but the number of layers or of experts per token is unknown.
        """
        if not self.use_rollout_routing_replay:
            return None
        if not self.num_layers or not self.moe_router_topk:
            raise ConfigError(
                f"--use-rollout-routing-replay needs --num-layers and --moe-router-topk, which are {self.num_layers} "
                f"and {self.moe_router_topk}; a model without experts has none to replay"
            )
        return self.num_layers * self.moe_router_topk

    @property
    def concurrency(self) -> int:
        """Maximum number of requests that slime would have in flight at its engines."""
        return self.sglang_server_concurrency * self.rollout_num_engines

    def sampling_params(self, seed_offset: int | None = None) -> dict[str, Any]:
        """Make the training sampling parameters, under SGLang's names.

        seed_offset: position in the group; sets the seed if inference is deterministic.
        """
        params = {
            "temperature": self.rollout_temperature,
            "top_p": self.rollout_top_p,
            "top_k": self.rollout_top_k,
            "max_new_tokens": self.rollout_max_response_len,
            "stop": self.rollout_stop,
            "stop_token_ids": self.rollout_stop_token_ids,
            "skip_special_tokens": self.rollout_skip_special_tokens,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        }
        if self.rollout_top_p != 1.0:
            params["custom_params"] = {"return_top_p_token_ids": True}
        return params | self._seed(seed_offset)

    def eval_sampling_params(self, dataset: Any, seed_offset: int | None = None) -> dict[str, Any]:
        """The same for an evaluation dataset, an EvalDatasetConfig.

        seed_offset: position among the samples of its prompt.
        """
        params = {
            "temperature": dataset.temperature,
            "top_p": dataset.top_p,
            "top_k": dataset.top_k,
            "max_new_tokens": dataset.max_response_len,
            "stop": _or(dataset.stop, self.rollout_stop),
            "stop_token_ids": _or(dataset.stop_token_ids, self.rollout_stop_token_ids),
            "skip_special_tokens": _or(dataset.skip_special_tokens, self.rollout_skip_special_tokens),
            "no_stop_trim": _or(dataset.no_stop_trim, True),
            "spaces_between_special_tokens": False,
            "repetition_penalty": dataset.repetition_penalty,
            "min_new_tokens": _or(dataset.min_new_tokens, self.eval_min_new_tokens),
        }
        for name in ("repetition_penalty", "min_new_tokens"):
            if params[name] is None:
                del params[name]
        return params | self._seed(seed_offset)

    def _seed(self, offset: int | None) -> dict[str, int]:
        if offset is None or not self.sglang_enable_deterministic_inference:
            return {}
        return {"sampling_seed": self.rollout_seed + offset}


def flag(name: str) -> str:
    """The command-line flag of an argument."""
    return "--" + name.replace("_", "-")


def _or(value: Any, fallback: Any) -> Any:
    return fallback if value is None else value


def _engines(args: Any) -> int:
    named = getattr(args, "rollout_num_engines", None)
    if named is None:
        named = (getattr(args, "rollout_num_gpus", None) or 0) // (
            getattr(args, "rollout_num_gpus_per_engine", None) or 1
        )
    return max(1, int(named))


def _kwargs(value: Any) -> Mapping[str, Any]:
    value = json.loads(value) if isinstance(value, str) else value
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"--apply-chat-template-kwargs is {value!r}, it must be a JSON object")
    return dict(value or {})
