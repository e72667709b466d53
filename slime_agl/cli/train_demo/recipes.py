"""Models and settings that `train-demo` can train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slime_agl.local.engine.model import use_threads
from slime_agl.local.train.boxes import rows, write_rows
from slime_agl.local.train.learner import LearnerSettings
from slime_agl.local.train.tiny_model import CONTEXT_LENGTH, make_tiny_checkpoint

NORMALIZE = "slime_agl.reward.normalize_rewards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """model: for LocalStack. args: slime's arguments other than checkpoint and router.

    target: mean reward that counts as learned and ends training; None for no target.
    steps: maximum training steps; None for no bound.
    """

    title: str
    model: str
    args: dict[str, Any]
    learner: LearnerSettings
    target: float | None
    steps: int | None


def tiny(directory: Path, seed: int) -> Recipe:
    """A tiny model, created in `directory`, on the task of `slime_agl.testing.boxes`."""
    use_threads(None)
    checkpoint = make_tiny_checkpoint(directory / "tiny", seed)
    return Recipe(
        title="a tiny transformer created on the spot; it must open the right box to learn the code to answer",
        model=str(checkpoint),
        args={
            "prompt_data": str(write_rows(directory / "rows.jsonl")),
            "input_key": "prompt",
            "label_key": "label",
            "rollout_batch_size": len(rows()),  # every box with every code, each step
            "n_samples_per_prompt": 12,
            "rollout_max_response_len": 16,
            "rollout_max_context_len": CONTEXT_LENGTH,
            "custom_reward_post_process_path": NORMALIZE,
            "agl": {"agent": "slime_agl.testing.boxes:boxes"},
        },
        learner=LearnerSettings(learning_rate=1e-3, updates=6, entropy=0.02),
        target=0.9,
        steps=60,
    )


def math_feedback(model: str, example: Path) -> Recipe:
    """examples/math_feedback with a real language model."""
    settings = yaml.safe_load((example / "agl.yaml").read_text(encoding="utf-8"))
    temperature = 0.8
    return Recipe(
        title=f"examples/math_feedback with {model}",
        model=model,
        args={
            "prompt_data": str(example / "train.jsonl"),
            "input_key": "prompt",
            "label_key": "label",
            "rollout_shuffle": True,
            "rollout_batch_size": 4,
            "n_samples_per_prompt": 8,
            "rollout_max_response_len": 32,
            "rollout_max_context_len": 1024,
            "rollout_temperature": temperature,
            "custom_rm_path": "slime_agl.reward.custom_rm",
            "custom_reward_post_process_path": NORMALIZE,
            **settings,
        },
        learner=LearnerSettings(learning_rate=5e-6, updates=1, temperature=temperature, micro_batch=2),
        target=None,
        steps=None,
    )
