"""Models and settings that `train-demo` can train, beside the tasks of the tiny model."""

from __future__ import annotations

from pathlib import Path

import yaml

from slime_agl.local.train.learner import LearnerSettings
from slime_agl.local.train.recipes import NORMALIZE, TASKS, Recipe

__all__ = ["TASKS", "Recipe", "math_feedback"]


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
