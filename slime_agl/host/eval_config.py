"""Evaluation datasets; stands in for `slime.utils.eval_config`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from slime_agl.errors import ConfigError, closest


@dataclass
class EvalDatasetConfig:
    """One evaluation dataset. None: the training flag applies (sampling), or nothing is set."""

    name: str
    path: str
    rm_type: str | None = None
    custom_rm_path: str | None = None
    input_key: str | None = None
    label_key: str | None = None
    tool_key: str | None = None
    metadata_key: str | None = None
    multimodal_keys: dict[str, str] | None = None
    apply_chat_template: bool | None = None
    apply_chat_template_kwargs: dict[str, Any] | None = None
    n_samples_per_eval_prompt: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_len: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_new_tokens: int | None = None
    repetition_penalty: float | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    custom_generate_function_path: str | None = None
    app_service: str | None = None
    eval_task_timeout: int | None = None
    min_eval_samples: int | None = None
    eval_early_stop_remaining: int | None = None
    eval_early_stop_idle_timeout: float | None = None
    message_processor: dict[str, Any] | None = None
    reward_model: dict[str, Any] | None = None
    remote_environment: dict[str, Any] | None = None
    metadata_overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.metadata_overrides is None:
            self.metadata_overrides = {}
        if not isinstance(self.metadata_overrides, dict):
            raise TypeError(
                f"metadata_overrides of eval dataset {self.name} is "
                f"{type(self.metadata_overrides).__name__}, it must be a mapping"
            )
        if self.min_eval_samples is not None and self.min_eval_samples <= 0:
            raise ConfigError(
                f"min_eval_samples of eval dataset {self.name} is {self.min_eval_samples}, it must be above 0"
            )

    @property
    def cache_key(self) -> tuple[Any, ...]:
        """The fields that its prompts depend on, apart from slime's arguments."""
        return self.name, self.path, self.input_key, self.label_key, self.tool_key, self.metadata_key

    def inject_metadata(self, sample_metadata: Any) -> dict[str, Any]:
        """Merge the row's metadata, rm_type and the overrides; later ones win."""
        own = sample_metadata if isinstance(sample_metadata, dict) else {}
        rule = {} if self.rm_type is None else {"rm_type": self.rm_type}
        return {**own, **rule, **self.metadata_overrides}


# Fields that fall back to slime's arguments: the first of these that is not None.
_ARGUMENTS = {
    "n_samples_per_eval_prompt": ("n_samples_per_eval_prompt", "n_samples_per_prompt"),
    "temperature": ("eval_temperature", "rollout_temperature"),
    "top_p": ("eval_top_p", "rollout_top_p"),
    "top_k": ("eval_top_k", "rollout_top_k"),
    "max_response_len": ("eval_max_response_len", "rollout_max_response_len"),
    "stop": ("rollout_stop",),
    "stop_token_ids": ("rollout_stop_token_ids",),
    "min_new_tokens": ("eval_min_new_tokens",),
    "input_key": ("eval_input_key", "input_key"),
    "label_key": ("eval_label_key", "label_key"),
    "tool_key": ("eval_tool_key", "tool_key"),
    "metadata_key": ("metadata_key",),
    "multimodal_keys": ("multimodal_keys",),
    "apply_chat_template": ("apply_chat_template",),
    "apply_chat_template_kwargs": ("apply_chat_template_kwargs",),
    "custom_rm_path": ("eval_custom_rm_path", "custom_rm_path"),
}


def build_eval_dataset_configs(
    args: Any, raw_config: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any] | None
) -> list[EvalDatasetConfig]:
    """Make one config per mapping; a field comes from the mapping, else `defaults`, else slime's arguments.

    Raises:
        ConfigError: a key of a mapping or of `defaults` is not a field.
    """
    defaults = dict(defaults or {})
    _refuse_unknown(defaults, "eval.defaults")
    configs = []
    for entry in raw_config:
        values = {name: _first_set(args, names) for name, names in _ARGUMENTS.items()} | defaults | dict(entry or {})
        _refuse_unknown(values, f"eval dataset {values.get('name')!r}")
        configs.append(EvalDatasetConfig(**values))
    return configs


def _first_set(args: Any, names: Iterable[str]) -> Any:
    values = (getattr(args, name, None) for name in names)
    return next((value for value in values if value is not None), None)


def _refuse_unknown(values: Mapping[str, Any], where: str) -> None:
    known = [item.name for item in fields(EvalDatasetConfig)]
    for name in values:
        if name not in known:
            raise ConfigError(f"{where} has no key {name!r}.{closest(name, known)} Known keys: {', '.join(known)}")
