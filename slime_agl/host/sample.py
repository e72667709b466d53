"""The training sample; stands in for `slime.utils.types.Sample`, with arrays in place of tensors."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import numpy as np

from slime_agl.host import replay


@dataclass
class Sample:
    """Prompt and response tokens with their training data.

    tokens: ids of prompt and response. response_length: number of response tokens; loss_mask and rollout_log_probs
    have one entry for each. rollout_id: the execution that several samples share, None if each is its own.
    """

    @dataclass
    class SpecInfo:
        """Speculative decoding counts, summed over a sample's engine answers."""

        spec_accept_token_num: int = 0
        spec_draft_token_num: int = 0
        spec_verify_ct: int = 0
        completion_token_num: int = 0

        @property
        def spec_accept_rate(self) -> float:
            return self.spec_accept_token_num / self.spec_draft_token_num if self.spec_draft_token_num > 0 else 0.0

        @property
        def spec_accept_length(self) -> float:
            return self.completion_token_num / self.spec_verify_ct if self.spec_verify_ct > 0 else 0.0

        def add(self, meta_info: dict) -> None:
            self.spec_accept_token_num += meta_info.get("spec_accept_token_num", 0)
            self.spec_draft_token_num += meta_info.get("spec_draft_token_num", 0)
            self.spec_verify_ct += meta_info.get("spec_verify_ct", 0)
            self.completion_token_num += meta_info.get("completion_tokens", 0)

        def to_dict(self) -> dict[str, int]:
            return dict(vars(self))

        @classmethod
        def from_dict(cls, data: dict) -> Sample.SpecInfo:
            return _counters(cls, data)

    @dataclass
    class PrefixCacheInfo:
        """Prompt tokens, and those that the engine had cached, summed over a sample's engine answers."""

        cached_tokens: int = 0
        total_prompt_tokens: int = 0

        @property
        def prefix_cache_hit_rate(self) -> float:
            return self.cached_tokens / self.total_prompt_tokens if self.total_prompt_tokens > 0 else 0.0

        def add(self, meta_info: dict) -> None:
            self.cached_tokens += meta_info.get("cached_tokens", 0)
            self.total_prompt_tokens += meta_info.get("prompt_tokens", 0)

        def to_dict(self) -> dict[str, int]:
            return dict(vars(self))

        @classmethod
        def from_dict(cls, data: dict) -> Sample.PrefixCacheInfo:
            return _counters(cls, data)

    class Status(Enum):
        """FAILED is a recoverable failure that may hold valid output; ABORTED was cut off."""

        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict = field(default_factory=dict)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: list[int] | np.ndarray | None = None
    rollout_top_p_token_offsets: list[int] | np.ndarray | None = None
    rollout_routed_experts: list[list[int]] | np.ndarray | None = None
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None
    status: Status = Status.PENDING
    metadata: dict = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    def to_dict(self) -> dict[str, Any]:
        """A shallow copy of all attributes, with status and the counters as plain values."""
        return {
            **vars(self),
            "status": self.status.value,
            "spec_info": self.spec_info.to_dict(),
            "prefix_cache_info": self.prefix_cache_info.to_dict(),
        }

    @staticmethod
    def from_dict(data: dict) -> Sample:
        """The inverse of `to_dict`; other keys become attributes."""
        known = {item.name for item in fields(Sample)}
        values = {
            **data,
            "status": Sample.Status(data["status"]),
            "spec_info": Sample.SpecInfo.from_dict(data.get("spec_info", {})),
            "prefix_cache_info": Sample.PrefixCacheInfo.from_dict(data.get("prefix_cache_info", {})),
        }
        sample = Sample(**{name: value for name, value in values.items() if name in known})
        for name in values.keys() - known:
            setattr(sample, name, values[name])
        return sample

    def get_reward_value(self, args: Any) -> Any:
        reward: Any = self.reward
        return reward[args.reward_key] if args.reward_key else reward

    @property
    def effective_response_length(self) -> int:
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Any = None,
        log_probs: Any = None,
        trainable: bool = True,
        meta_info: dict | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append tokens to the response and keep mask, logprobs and replay data aligned with it.

        Sampled tokens come with their logprobs and the engine's meta_info. Tokens that were not
        sampled (trainable=False) get mask 0, logprob 0 and empty top-p sets. Status, weight version
        and counters follow meta_info's finish reason unless update_terminal_info is False.

        Raises:
            ValueError: logprobs are missing, unwanted or of another length than the tokens, or a
                parallel field does not cover the response afterwards.
        """
        tokens = list(map(int, _flat(tokens)))
        log_probs = None if log_probs is None else list(map(float, _flat(log_probs)))
        if log_probs is not None and len(log_probs) != len(tokens):
            raise ValueError(f"{len(tokens)} response tokens came with {len(log_probs)} logprobs")
        if tokens and trainable and log_probs is None:
            raise ValueError(f"{len(tokens)} trainable response tokens came without logprobs")
        if tokens and not trainable:
            if log_probs is not None:
                raise ValueError(f"{len(tokens)} response tokens that do not train came with logprobs")
            log_probs = [0.0] * len(tokens)
        if text is not None:
            self.response += text
        self._extend(tokens, log_probs, trainable)
        pad = bool(tokens) and not trainable
        if meta_info is not None or pad:
            self._take_replay(args, meta_info or {}, len(tokens), pad)
        if update_terminal_info and meta_info is not None and "finish_reason" in meta_info:
            self._take_finish(args, meta_info)
        self._check_lengths()

    def _extend(self, tokens: list[int], log_probs: list[float] | None, trainable: bool) -> None:
        before = self.response_length
        if tokens:
            self.tokens += tokens
            self.response_length += len(tokens)
            if self.loss_mask is None:
                self.loss_mask = [1] * before
            self.loss_mask += [int(trainable)] * len(tokens)
        if log_probs is None:
            return
        if self.rollout_log_probs is None:
            if trainable and before:
                raise ValueError(
                    f"the {before} response tokens already there have no logprobs; new ones cannot be appended"
                )
            self.rollout_log_probs = [0.0] * before
        self.rollout_log_probs += log_probs

    def _take_replay(self, args: Any, meta_info: dict, new_tokens: int, pad: bool) -> None:
        ids, offsets = self.rollout_top_p_token_ids, self.rollout_top_p_token_offsets
        new = replay.read_top_p(meta_info, new_tokens) if new_tokens else None
        if new is not None:
            ids, offsets = replay.join_top_p(ids, offsets, new)
        elif pad and offsets is not None:
            ids, offsets = replay.pad_top_p(ids, offsets, new_tokens)
        self.rollout_top_p_token_ids, self.rollout_top_p_token_offsets = ids, offsets
        self.rollout_routed_experts = replay.join_experts(
            self.rollout_routed_experts, meta_info, args, len(self.tokens)
        )

    def _take_finish(self, args: Any, meta_info: dict) -> None:
        if getattr(args, "sglang_speculative_algorithm", False):
            self.spec_info.add(meta_info=meta_info)
        self.prefix_cache_info.add(meta_info=meta_info)
        if "weight_version" in meta_info:
            self.weight_versions.append(meta_info["weight_version"])
        self.status = _STATUS_OF_FINISH.get(meta_info["finish_reason"]["type"], self.status)

    def _check_lengths(self) -> None:
        for name in ("loss_mask", "rollout_log_probs"):
            values = getattr(self, name)
            if values is not None and len(values) != self.response_length:
                raise ValueError(f"{name} has {len(values)} entries, the response has {self.response_length} tokens")
        replay.check_top_p(self.rollout_top_p_token_ids, self.rollout_top_p_token_offsets, self.response_length)


_STATUS_OF_FINISH = {"length": Sample.Status.TRUNCATED, "abort": Sample.Status.ABORTED, "stop": Sample.Status.COMPLETED}


def _counters(cls: type, data: dict) -> Any:
    return cls(**{item.name: data.get(item.name, 0) for item in fields(cls)})


def _flat(values: Any) -> Any:
    if values is None:
        return ()
    if isinstance(values, array):
        return values.tolist()
    return np.asarray(values).reshape(-1).tolist() if hasattr(values, "tolist") else values
