"""Functions for slime's flags.

`custom_rm` (with --group-rm, `custom_group_rm`) is for --custom-rm-path, `normalize_rewards` for
--custom-reward-post-process-path, and `check_reward_nonzero_std` for --dynamic-sampling-filter-path.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsFloat, TypeGuard

from slime_agl import host
from slime_agl.assemble import current
from slime_agl.baseline import rewards_by_sample, rewards_by_token, scored, trained_tokens
from slime_agl.credit.emitted import Reward
from slime_agl.credit.groups import groups_of
from slime_agl.credit.turns import unpacked as turns_of
from slime_agl.errors import ConfigError, RewardError
from slime_agl.execution import Execution
from slime_agl.host import DynamicFilterOutput, Sample, load_object
from slime_agl.host.estimators import given, normalises_groups

__all__ = [
    "check_reward_nonzero_std",
    "check_reward_nonzero_std_with_fallback",
    "custom_group_rm",
    "custom_rm",
    "normalize_rewards",
    "teacher_only",
    "zero",
]

RewardFunction = Callable[[Any, Execution], Any]
TurnFunction = Callable[[Execution], Any]
# A reward as slime reads it: a number, or a dict when a reward key is set.
ShapedReward = float | dict[str, Any]


def normalize_rewards(args: Any, samples: list[Sample]) -> tuple[list[float], list[Any]]:
    """slime's reward normalisation, also correct when an execution gave several Samples.

    Returns the raw rewards and those to train on, both in the order of `samples`. Under an estimator that compares
    the executions of a prompt (grpo, gspo, cispo, reinforce_plus_plus_baseline; not with
    --disable-rewards-normalization) each Sample's reward becomes

        (reward - mean) / (std + 1e-6)        the division for the first three, unless --disable-grpo-std-normalization

    where mean and std (unbiased) are over the executions of its group. Each execution counts once: with its reward or,
    if its Samples carry different credit, with their mean over trained tokens; std then includes the variance of credit
    within executions, which keeps such advantages in proportion. `group_index` identifies groups, `rollout_id`
    executions. Removed Samples (`remove_sample`), such as placeholders of failed executions, count in no mean and
    become 0; so does a group in which a single execution counts. Samples that are masked but not removed
    (--mask-offpolicy-in-partial-rollout) count.

    If every execution gave one Sample and none is removed, the result equals slime's bit for bit.

    Under `agl.credit.span: turn` the second list has, per Sample, a float32 tensor of shape [response tokens], for
    `slime_agl.advantage`; the turns of an execution take the place of its Samples above.

    Raises:
        RewardError: a sample has no reward.
    """
    key = given(args, "reward_key")
    raw = [_raw_reward(sample, key) for sample in samples]
    turns = [turns_of(sample.metadata) for sample in samples]
    if any(turns):
        return raw, rewards_by_token(args, samples, raw, turns)
    if not normalises_groups(args):
        return raw, raw
    return raw, rewards_by_sample(args, samples, raw)


def teacher_only(args: Any, samples: list[Sample]) -> tuple[list[Any], list[float]]:
    """For --custom-reward-post-process-path in a pure distillation: rewards are logged, and only the teacher trains.

    Returns the raw rewards, and zeros. A Sample without reward counts as 0.
    """
    key = given(args, "reward_key")
    found = [reward.get(key) if key and isinstance(reward, dict) else reward for reward in (s.reward for s in samples)]
    return [0.0 if reward is None else reward for reward in found], [0.0] * len(samples)


def check_reward_nonzero_std(args: Any, samples: list[Any], **kwargs: Any) -> DynamicFilterOutput:
    """slime's filter of that name, also correct when an execution gave several Samples: drop groups with equal rewards.

    samples: a group of Samples or, for executions with several, lists of Samples. Each execution counts once, as in
    `normalize_rewards`; removed Samples do not count. slime's own filter judges the resulting rewards, so if every
    execution gave one Sample and none is removed, verdict and reason are slime's. A group in which nothing trains is
    dropped as `nothing_trains`.

    Raises:
        RewardError: a sample that is not removed has no reward.
    """
    items = [item if isinstance(item, list) else [item] for item in samples]
    counted = _one_each(args, items)
    if not any(trained_tokens(sample) for item in items for sample in item):
        return DynamicFilterOutput(keep=False, reason="nothing_trains")
    if len(counted) == 1:
        counted *= 2  # no spread either way, but of a single number torch warns
    return host.check_reward_nonzero_std(args, counted, **kwargs)


def check_reward_nonzero_std_with_fallback(args: Any, samples: list[Any], **kwargs: Any) -> DynamicFilterOutput:
    """The same, but keep a group if dropping it would leave too few to fill the batch."""
    output = check_reward_nonzero_std(args, samples, **kwargs)
    output.keep_when_insufficient = True
    return output


def _one_each(args: Any, items: list[list[Sample]]) -> list[Sample]:
    """Per execution that counts, a Sample with only its reward. items: the Samples of each execution."""
    key = given(args, "reward_key")
    entries = [
        scored(sample, None, at, _raw_reward(sample, key))
        for at, item in enumerate(items)
        for sample in item
        if not sample.remove_sample
    ]
    values = [value for one in groups_of(entries) for value in one.values]
    return [Sample(reward={key: value} if key else value) for value in values]


def _raw_reward(sample: Sample, key: str | None) -> Any:
    whole: Any = sample.reward
    reward = (whole or {}).get(key) if key else whole
    if reward is None:
        raise RewardError(
            f"sample {sample.index} has {f'no reward {key!r}, which --reward-key names' if key else 'no reward'}, "
            "so its group cannot be normalised; look for the function that should have set it (--custom-rm-path)"
        )
    return reward


async def custom_rm(args: Any, sample: Sample | list[Any], **kwargs: Any) -> Any:
    """Reward of one sample, or of each of a list (--group-rm, and samples of one execution).

    A list may contain samples or lists of samples; the result has one entry per item.
    With --reward-key the reward is a dict with that key, otherwise a number.

    Raises:
        RewardError: the execution is unknown here, or nothing gives it a reward.
    """
    if isinstance(sample, list):
        return [await custom_rm(args, item[0] if isinstance(item, list) else item, **kwargs) for item in sample]
    if sample.reward is not None:
        return sample.reward
    runtime = current()
    provenance = (sample.metadata or {}).get("agl") or {}
    execution = None if runtime is None else await runtime.finished(provenance.get("rollout_id", ""))
    if runtime is None or execution is None:
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


async def custom_group_rm(args: Any, samples: list[Any], **kwargs: Any) -> list[Any]:
    """`custom_rm` for lists only, with the parameter name that slime uses for group rewards (--group-rm)."""
    return await custom_rm(args, samples, **kwargs)


def zero(task: Any, execution: Execution) -> float:
    """For `agl.reward` in a pure distillation: agents without a reward of their own get 0, and the teacher decides."""
    return 0.0


def load_reward_function(path: str | None) -> RewardFunction | None:
    """Load the function that `agl.reward` names. Raises ConfigError if it is not callable."""
    if path is None:
        return None
    function = load_object(path)
    if not callable(function):
        raise ConfigError(
            f"agl.reward names {path}, which is {type(function).__name__}, not a function of (task, execution)"
        )
    return function


def load_turn_function(path: str | None) -> TurnFunction | None:
    """Load the function that `agl.credit.function` names. Raises ConfigError if it is not callable."""
    function = None if path is None else load_object(path)
    if function is not None and not callable(function):
        raise ConfigError(
            f"agl.credit.function names {path}, which is {type(function).__name__}, not a function of (execution)"
        )
    return function


async def ask_turns(function: TurnFunction, execution: Execution) -> dict[int, float]:
    """Call the user's credit function, sync or async; return the credit by turn index.

    Raises:
        RewardError: it raised, or returned something other than a finite number per turn.
    """
    source = f"agl.credit.function on rollout {execution.rollout_id}"
    try:
        credit = function(execution)
        if inspect.isawaitable(credit):
            credit = await credit
    except Exception as error:  # the boundary to the user's function
        raise RewardError(f"{source} failed: {type(error).__name__}: {error}") from error
    count = len(execution.ledger.turns)
    if not isinstance(credit, Mapping):
        given = list(credit) if isinstance(credit, Iterable) else [credit]
        if len(given) != count:
            raise RewardError(
                f"{source} gave {len(given)} numbers for {count} turns (execution.ledger.turns); give one per turn, or "
                "a mapping from turn index to number"
            )
        credit = dict(enumerate(given))
    if unknown := [at for at in credit if at not in range(count)]:
        raise RewardError(f"{source} gave credit to turn {unknown[0]!r}; the execution has turns 0 to {count - 1}")
    for at, value in credit.items():
        if not _is_finite(value):
            raise RewardError(f"{source} gave turn {at} {value!r} ({type(value).__name__}); it must be a finite number")
    return {int(at): float(value) for at, value in credit.items()}


async def ask(function: RewardFunction, execution: Execution) -> Reward:
    """Call the user's reward function, sync or async.

    Raises:
        RewardError: it raised, or returned something other than a number or a dict of numbers.
    """
    try:
        reward = function(execution.task, execution)
        if inspect.isawaitable(reward):
            reward = await reward
    except Exception as error:
        # The boundary to the user's function: name the execution that its error is about.
        raise RewardError(
            f"agl.reward failed on rollout {execution.rollout_id}: {type(error).__name__}: {error}"
        ) from error
    return checked(reward, f"agl.reward on rollout {execution.rollout_id}")


def checked(reward: Any, source: str) -> Reward:
    """Check a reward and convert it to floats. Raises RewardError for anything but finite numbers."""
    if isinstance(reward, dict) and reward:
        dimensions: dict[str, Any] = {}
        for name, value in reward.items():
            dimensions[name] = checked(value, f"{source}, dimension {name!r}")
        return dimensions
    if _is_finite(reward):
        return float(reward)
    raise RewardError(
        f"{source} gave {reward!r} ({type(reward).__name__}), a reward must be a finite number or a dict of such "
        "numbers"
    )


def _is_finite(value: Any) -> TypeGuard[SupportsFloat]:
    return hasattr(value, "__float__") and math.isfinite(value)


def shaped(reward: Reward, key: str | None, source: str) -> ShapedReward:
    """Convert a reward to the shape that slime reads: a dict with a reward key, otherwise a number.

    Raises:
        RewardError: the dict lacks the key.
    """
    if key is None:
        return next(iter(reward.values())) if isinstance(reward, Mapping) else reward
    if not isinstance(reward, Mapping):
        return {key: reward}
    if key not in reward:
        raise RewardError(f"{source} has no dimension {key!r}, which --reward-key names; it has {', '.join(reward)}")
    return dict(reward)
