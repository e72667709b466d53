"""Rewards of executions: the agent's, `agl.reward`'s, or those of slime's options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slime_agl.config import CreditConfig
from slime_agl.credit.emitted import Emitted, Reward
from slime_agl.credit.per_agent import per_agent
from slime_agl.credit.per_turn import per_turn
from slime_agl.credit.turns import TurnCredit, as_given, by_returns, earned
from slime_agl.errors import RewardError
from slime_agl.execution import Execution
from slime_agl.host import RolloutArgs, Sample, async_rm, batched_async_rm, has_reward_option
from slime_agl.reward import RewardFunction, ShapedReward, ask, ask_turns, load_turn_function, shaped

FAILED = "failed"
OURS = ("slime_agl.reward.custom_rm", "slime_agl.reward.custom_group_rm")


class Rewarder:
    """Rewards the Samples of an execution: from the agent, else `agl.reward`, else slime's own options."""

    def __init__(self, args: RolloutArgs, function: RewardFunction | None, credit: CreditConfig) -> None:
        self._args, self._function, self._credit = args, function, credit
        self._turn_function = load_turn_function(credit.function)

    def shape(self, reward: Reward, source: str, *, evaluation: bool) -> ShapedReward:
        return shaped(reward, self._key(evaluation), source)

    def of_failure(self, reward: float, *, evaluation: bool) -> ShapedReward:
        """Reward of a failed execution's Samples, with the field that --log-reward-category reads."""
        given = self.shape(reward, "the reward of a failed execution", evaluation=evaluation)
        category = getattr(self._args.raw, "log_reward_category", None)
        if category is None or not isinstance(given, dict):
            return given
        return {category: FAILED, **given}

    def _key(self, evaluation: bool) -> str | None:
        return (self._args.eval_reward_key if evaluation else None) or self._args.reward_key

    async def own(self, execution: Execution, *, evaluation: bool) -> ShapedReward | None:
        """The reward from the agent or `agl.reward`; None without either."""
        if execution.reward is not None:
            return self.shape(
                execution.reward, f"the agent's reward in rollout {execution.rollout_id}", evaluation=evaluation
            )
        if self._function is not None:
            reward = await ask(self._function, execution)
            return self.shape(reward, f"agl.reward on rollout {execution.rollout_id}", evaluation=evaluation)
        return None

    def can_reward(self, execution: Execution, sample: Sample) -> bool:
        """Return True if the agent, `agl.reward`, or a reward option of slime gives this execution a reward.

        `slime_agl.reward.custom_rm` does not count: it asks only the first two.
        """
        path = sample.custom_rm_path or self._args.custom_rm_path
        if execution.reward is not None or self._function is not None:
            return True
        return path not in OURS and has_reward_option(self._args.raw, sample)

    async def credits(self, execution: Execution) -> Sequence[ShapedReward | None]:
        """The training reward of each segment by `agl.credit`; None where slime's options have to give one.

        A reward of `agl.reward` counts as one that the agent gave after its last turn.
        """
        own = await self.own(execution, evaluation=False)
        if own is None or self._credit.mode == "outcome":
            return [own] * len(execution.segments)
        if self._credit.mode == "per_agent":
            rewards = per_agent(execution.emitted, execution.segments)
            return [own if reward is None else self._trained(reward, execution) for reward in rewards]
        emitted = execution.emitted or (Emitted(_dimensions(own), len(execution.ledger.turns)),)
        worth = [_dimensions(self._trained(item.reward, execution)) for item in emitted]
        returns = per_turn(emitted, worth, execution.segments, discount=self._credit.discount)
        return [values if isinstance(own, dict) else values[_ONLY] for values in returns]

    async def turns(self, execution: Execution, negative: float | None) -> list[list[TurnCredit]]:
        """The credit of each segment's trained turns, under `agl.credit.span: turn`; none where nothing gives any.

        negative: of every turn, in place of what the execution earned.

        Raises:
            RewardError: `agl.credit.function` failed, or gave something other than a finite number per turn.
        """
        parts = execution.segments
        if self._credit.span != "turn":
            return [[] for _ in parts]
        if negative is not None:
            return [as_given(dict.fromkeys(segment.trained, negative), segment) for segment in parts]
        if self._turn_function is not None:
            credit = await ask_turns(self._turn_function, execution)
            return [as_given(credit, segment) for segment in parts]
        own = await self.own(execution, evaluation=False)
        if own is None:
            return [[] for _ in parts]
        emitted = execution.emitted or (Emitted(_dimensions(own), len(execution.ledger.turns)),)
        worth = [self._number(self._trained(item.reward, execution)) for item in emitted]
        rewards = earned(emitted, worth, parts)
        return [by_returns(rewards, segment, discount=self._credit.discount) for segment in parts]

    def _number(self, reward: ShapedReward) -> float:
        """The dimension that slime trains on."""
        if not isinstance(reward, dict):
            return reward
        assert self._args.reward_key is not None, "only a reward key makes a reward a dict"
        return float(reward[self._args.reward_key])

    def _trained(self, reward: Reward, execution: Execution) -> ShapedReward:
        return self.shape(reward, f"a reward of the agent in rollout {execution.rollout_id}", evaluation=False)

    async def score(self, samples: Sequence[Sample], *, evaluation: bool) -> None:
        """Score samples without a reward by slime's reward options.

        Raises:
            RewardError: no option is set, or it gives something other than a finite number.
        """
        waiting = [sample for sample in samples if sample.reward is None]
        for sample in waiting:
            self._require_option(sample)
        # slime's batched call ignores a sample's own function, which takes precedence.
        alone = [sample for sample in waiting if sample.custom_rm_path or len(waiting) == 1]
        together = [sample for sample in waiting if not (sample.custom_rm_path or len(waiting) == 1)]
        for sample in alone:
            sample.reward = await async_rm(self._args.raw, sample)
        if together:
            rewards = await batched_async_rm(self._args.raw, together)
            _same_number(rewards, together, "samples")
            for sample, reward in zip(together, rewards, strict=True):
                sample.reward = reward
        for sample in waiting:
            _require_number(sample, self._key(evaluation))

    async def score_group(self, group: Sequence[list[Sample]], failed: Sequence[bool]) -> None:
        """Score a whole group in one call (--group-rm), in the shape that slime passes groups.

        A rule (--rm-type) has no notion of groups and scores each Sample.
        failed: which executions failed; they keep the reward of their failure policy.

        Raises:
            RewardError: no option is set, or it gives a non-finite reward or the wrong number of them.
        """
        self._require_option(group[0][0])
        scored = [sample for entry, keeps in zip(group, failed, strict=True) if not keeps for sample in entry]
        if self._args.custom_rm_path is None:
            rewards = await batched_async_rm(self._args.raw, scored)
        else:
            rewards = await self._of_group(group, failed)
        for sample, reward in zip(scored, rewards, strict=True):
            sample.reward = reward
            _require_number(sample, self._args.reward_key)

    async def _of_group(self, group: Sequence[list[Sample]], failed: Sequence[bool]) -> list[Any]:
        """Rewards by the user's function for the Samples of executions that did not fail, in order."""
        view = [entry[0] for entry in group] if all(len(entry) == 1 for entry in group) else list(group)
        rewards = await batched_async_rm(self._args.raw, view)
        _same_number(rewards, group, "entries of a group")
        spread: list[Any] = []
        for entry, reward, keeps in zip(group, rewards, failed, strict=True):
            several = reward if isinstance(reward, list | tuple) else [reward] * len(entry)
            _same_number(several, entry, "Samples of an execution")
            spread += [] if keeps else several
        return spread

    def _require_option(self, sample: Sample) -> None:
        if not has_reward_option(self._args.raw, sample):
            raise RewardError(no_reward(f"sample {sample.index}"))


def no_reward(what: str) -> str:
    """Format the error for `what` having no reward, with the remedies."""
    return (
        f"{what} has no reward: its agent neither returned nor emitted one, and no reward option gives it one. "
        "Return a number from the agent, call agl.emit_reward, set agl.reward, or pass --custom-rm-path or --rm-type"
    )


def _require_number(sample: Sample, key: str | None) -> None:
    """Raise RewardError unless the reward is a finite number: any other would spread to its whole group."""
    value: Any = sample.reward.get(key) if key and isinstance(sample.reward, dict) else sample.reward
    if value is None or (hasattr(value, "__float__") and not math.isfinite(value)):
        raise RewardError(
            f"slime's reward options (--custom-rm-path or --rm-type) gave sample {sample.index} the reward "
            f"{sample.reward!r}{f', read under the key {key!r}' if key else ''}; it must be a finite number"
        )


def _same_number(rewards: Sequence[object], asked: Sequence[object], what: str) -> None:
    if len(rewards) != len(asked):
        raise RewardError(
            f"--custom-rm-path gave {len(rewards)} rewards for {len(asked)} {what}; it has to give one for each"
        )


_ONLY = "reward"


def _dimensions(reward: ShapedReward) -> dict[str, float]:
    """A shaped reward by dimension; a number has a single one."""
    return dict(reward) if isinstance(reward, dict) else {_ONLY: float(reward)}
