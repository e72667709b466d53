"""For --custom-rm-path: the agent's own reward, else the user's function named by `agl.reward`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from slime_agl.assemble import current
from slime_agl.errors import ConfigError, RewardError
from slime_agl.host import Sample, load_object
from slime_agl.runtime import Execution

RewardFunction = Callable[[Any, Execution], Any]


async def custom_rm(args: Any, sample: Sample | list[Any], **kwargs: Any) -> Any:
    """Reward of one sample, or of each of a list (--group-rm, and samples of one execution).

    A list may hold samples or lists of samples (fan-out); the answer has one entry an item.
    With --reward-key the reward is a dict that has the key, otherwise a number.

    Raises:
        RewardError: the execution is not known here, or nothing gives it a reward.
    """
    if isinstance(sample, list):
        return [await custom_rm(args, item[0] if isinstance(item, list) else item, **kwargs) for item in sample]
    if sample.reward is not None:
        return sample.reward
    runtime = current()
    provenance = (sample.metadata or {}).get("agl") or {}
    execution = runtime.finished(provenance.get("rollout_id", "")) if runtime is not None else None
    if execution is None:
        raise RewardError(
            f"sample {sample.index} was not made by slime_agl in the last steps, so its agent's reward is unknown; "
            "use slime_agl.reward.custom_rm together with --rollout-function-path slime_agl.rollout.generate"
        )
    reward = execution.reward
    if reward is None:
        function = load_reward_function(runtime.config.reward)
        if function is None:
            raise RewardError(
                f"the agent gave no reward in rollout {execution.rollout_id}; return a number from it, "
                "call agl.emit_reward, or set agl.reward to the import path of f(task, execution)"
            )
        reward = await ask(function, execution)
    return shaped(reward, getattr(args, "reward_key", None), f"the reward of rollout {execution.rollout_id}")


def load_reward_function(path: str | None) -> RewardFunction | None:
    """The function that `agl.reward` names. Raises ConfigError when it is not callable."""
    if path is None:
        return None
    function = load_object(path)
    if not callable(function):
        raise ConfigError(
            f"agl.reward names {path}, which is {type(function).__name__}, not a function of (task, execution)"
        )
    return function


async def ask(function: RewardFunction, execution: Execution) -> Any:
    """Call the user's reward function, sync or async.

    Raises:
        RewardError: it raised, or gave something else than a number or a dict of numbers.
    """
    try:
        reward = function(execution.task, execution)
        if inspect.isawaitable(reward):
            reward = await reward
    except Exception as error:
        # The user's function is a boundary: its error must say which execution it was about.
        raise RewardError(
            f"agl.reward failed on rollout {execution.rollout_id}: {type(error).__name__}: {error}"
        ) from error
    return checked(reward, f"agl.reward on rollout {execution.rollout_id}")


def checked(reward: Any, source: str) -> Any:
    """A reward as it may stand in a Sample. Raises RewardError for anything but numbers."""
    if isinstance(reward, dict) and reward:
        return {name: checked(value, f"{source}, dimension {name!r}") for name, value in reward.items()}
    if isinstance(reward, bool | int | float) or hasattr(reward, "__float__"):
        return float(reward)
    raise RewardError(
        f"{source} gave {reward!r} ({type(reward).__name__}), a reward must be a number or a dict of numbers"
    )


def shaped(reward: Any, key: str | None, source: str) -> Any:
    """A reward in the shape slime reads it: a dict when a reward key is set, a number otherwise.

    Raises:
        RewardError: the dict lacks the key.
    """
    if key is None:
        return next(iter(reward.values())) if isinstance(reward, dict) else reward
    if not isinstance(reward, dict):
        return {key: reward}
    if key not in reward:
        raise RewardError(f"{source} has no dimension {key!r}, which --reward-key names; it has {', '.join(reward)}")
    return reward
