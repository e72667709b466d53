"""What the tiny model can be trained on: a model, slime's arguments, and settings of the learner for each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slime_agl.local.engine.model import use_threads
from slime_agl.local.train import tasks
from slime_agl.local.train.boxes import aimless, knowing, rows, write_rows
from slime_agl.local.train.learner import LearnerSettings
from slime_agl.local.train.tiny_model import CONTEXT_LENGTH, Talks, make_tiny_checkpoint

NORMALIZE, TEACHER_ONLY = "slime_agl.reward.normalize_rewards", "slime_agl.reward.teacher_only"
TEACHER_LESSONS = 400
COPY_SAMPLES, COPY_STEPS = 4, 12
STALENESS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """model: for LocalStack. args: slime's arguments other than checkpoint and router.

    target: mean reward that counts as learned and ends training; None for no target.
    steps: maximum training steps; None for no bound. teacher: checkpoint that a teacher serves. staleness: how many
    steps older the weights that sampled a token may be.
    """

    title: str
    model: str
    args: dict[str, Any]
    learner: LearnerSettings
    target: float | None
    steps: int | None
    teacher: str | None = None
    staleness: int = 0


def boxes(directory: Path, seed: int) -> Recipe:
    """A tiny model, created in `directory`, on the task of `slime_agl.testing.boxes`."""
    return _tiny(
        directory,
        seed,
        title="a tiny transformer created on the spot; it must open the right box to learn the code to answer",
        agent="slime_agl.testing.boxes:boxes",
        data=write_rows(directory / "rows.jsonl"),
        groups=len(rows()),  # every box with every code, each step
    )


def distill(directory: Path, seed: int) -> Recipe:
    """The same, taught by a tiny model that knows the task; no reward trains."""
    use_threads(None)
    teacher = make_tiny_checkpoint(directory / "teacher", seed + 1000, talks=knowing, lessons=TEACHER_LESSONS)
    recipe = boxes(directory, seed)
    args = {
        "custom_reward_post_process_path": TEACHER_ONLY,
        "use_opd": True,
        "opd_type": "sglang",
        "rollout_max_context_len": CONTEXT_LENGTH - 1,  # a teacher takes prompts that leave room for a token
    }
    return replace(
        recipe,
        title="a tiny transformer distils another that opens the right box and says its code; no reward trains",
        args=recipe.args | args,
        learner=replace(recipe.learner, distill=1.0, entropy=0.0),
        teacher=str(teacher),
    )


def errands(directory: Path, seed: int) -> Recipe:
    """Three turns of a planner and its helper, which is a conversation and a Sample of its own."""
    return _tiny(
        directory,
        seed,
        title="a planner opens a box, a helper reports what lies in it, the planner passes it on: two Samples each",
        agent="slime_agl.testing.tasks:errands",
        data=write_rows(directory / "rows.jsonl"),
        groups=len(rows()),
        talks=tasks.errands,
    )


def turns(directory: Path, seed: int) -> Recipe:
    """Eight turns in one Sample, each with its own credit."""
    recipe = copies(directory, seed)
    credit = {"span": "turn", "function": "slime_agl.testing.tasks:right_turns"}
    return replace(
        recipe,
        title="eight codes to say again in one Sample, with credit by turn",
        args=recipe.args
        | {
            "custom_advantage_function_path": "slime_agl.advantage.turns",
            "agl": recipe.args["agl"] | {"credit": credit},
        },
    )


def copies(directory: Path, seed: int) -> Recipe:
    """The same turns, all with the credit of the whole."""
    return _tiny(
        directory,
        seed,
        title="eight codes to say again in one Sample, with one credit for all",
        agent="slime_agl.testing.tasks:copies",
        data=tasks.write_copy_rows(directory / "rows.jsonl"),
        groups=tasks.PROMPTS,
        talks=tasks.copies,
        samples=COPY_SAMPLES,
        steps=COPY_STEPS,
    )


def stale(directory: Path, seed: int) -> Recipe:
    """`boxes` while agents go on through weight updates, with truncated importance sampling."""
    recipe = boxes(directory, seed)
    section = {"async": {"enabled": True, "max_staleness": STALENESS}}
    return replace(
        recipe,
        title="the task of the boxes, sampled by weights up to two steps old and corrected for it",
        args=recipe.args | {"agl": recipe.args["agl"] | section},
        learner=replace(recipe.learner, importance=2.0),
        staleness=STALENESS,
    )


TASKS: dict[str, Callable[[Path, int], Recipe]] = {
    "boxes": boxes,
    "distill": distill,
    "errands": errands,
    "turns": turns,
    "turns-by-outcome": copies,
    "async": stale,
}


def _tiny(
    directory: Path,
    seed: int,
    *,
    title: str,
    agent: str,
    data: Path,
    groups: int,
    talks: Talks = aimless,
    samples: int = 12,
    steps: int = 60,
) -> Recipe:
    use_threads(None)
    return Recipe(
        title=title,
        model=str(make_tiny_checkpoint(directory / "tiny", seed, talks=talks)),
        args={
            "prompt_data": str(data),
            "input_key": "prompt",
            "label_key": "label",
            "rollout_batch_size": groups,
            "n_samples_per_prompt": samples,
            "rollout_max_response_len": 16,
            "rollout_max_context_len": CONTEXT_LENGTH,
            "custom_reward_post_process_path": NORMALIZE,
            "agl": {"agent": agent},
        },
        learner=LearnerSettings(learning_rate=1e-3, updates=6, entropy=0.02),
        target=0.9,
        steps=steps,
    )
