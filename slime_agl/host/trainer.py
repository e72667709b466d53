"""The needs of slime's trainer: those of its estimators, and its fixed micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

ESTIMATORS = ("grpo", "gspo", "cispo", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")


@dataclass(frozen=True, slots=True)
class Schedule:
    """slime's fixed micro-batches.

    executions: per optimizer batch (--global-batch-size). size: Samples per micro-batch. align: the number of
    micro-batches per optimizer batch must be a multiple of it.
    """

    executions: int
    size: int
    align: int

    def missing(self, samples: int) -> int:
        """Return how many Samples an optimizer batch of `samples` lacks; slime stops if any are missing."""
        batches = -(-samples // self.size)
        wanted = -(-batches // self.align) * self.align
        return 0 if wanted == batches else (wanted - 1) * self.size + 1 - samples


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerArgs:
    """The arguments of slime's trainer that decide which Samples it accepts, with slime's names and defaults."""

    advantage_estimator: str = "grpo"
    custom_advantage_function_path: str | None = None
    custom_pg_loss_reducer_function_path: str | None = None
    custom_tis_function_path: str | None = None
    calculate_per_token_loss: bool = False
    kl_coef: float = 0.0
    use_rollout_logprobs: bool = False
    use_opd: bool = False
    opd_type: str | None = None
    log_passrate: bool = False
    debug_rollout_only: bool = False
    use_dynamic_batch_size: bool = False
    global_batch_size: int | None = None
    micro_batch_size: int = 1
    actor_num_nodes: int | None = None
    actor_num_gpus_per_node: int | None = None
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    context_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    microbatch_group_size_per_vp_stage: int | None = None
    megatron_config_path: str | None = None

    @classmethod
    def read(cls, raw: Any) -> TrainerArgs:
        """Read slime's namespace; a missing argument, or None, gets slime's default."""
        found = {item.name: getattr(raw, item.name, None) for item in fields(cls)}
        return cls(**{name: value for name, value in found.items() if value is not None})

    @property
    def estimator(self) -> str | None:
        """slime's estimator; None if a user's function replaces it."""
        return None if self.custom_advantage_function_path else self.advantage_estimator

    @property
    def needs_trained_tokens(self) -> bool:
        """True if the estimator fails on a Sample without trained tokens, such as a placeholder."""
        return self.estimator == "reinforce_plus_plus" and not self.debug_rollout_only

    @property
    def fixed_batches(self) -> bool:
        """True if slime cuts a step into micro-batches of one size, which executions of several Samples can break."""
        return not (self.use_dynamic_batch_size or self.debug_rollout_only or self.global_batch_size is None)

    @property
    def schedule(self) -> Schedule | None:
        """The fixed micro-batches; None without them, or if the ranks are unknown (--megatron-config-path)."""
        if not self.fixed_batches or self.megatron_config_path or not self.actor_num_gpus_per_node:
            return None
        ranks = (self.actor_num_nodes or 1) * self.actor_num_gpus_per_node
        model = self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size
        align = max(1, ranks // model)
        if (self.virtual_pipeline_model_parallel_size or 1) > 1:
            align *= self.microbatch_group_size_per_vp_stage or self.pipeline_model_parallel_size
        return Schedule(self.global_batch_size or 1, self.micro_batch_size, align)
