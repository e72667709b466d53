"""Where an execution's reward comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slime_agl.errors import RewardError
from slime_agl.host import RolloutArgs, Sample, async_rm, batched_async_rm, has_reward_option
from slime_agl.reward import RewardFunction, ask, shaped
from slime_agl.runtime import Execution


class Rewarder:
    """Gives the samples of an execution their reward: the agent's, else agl.reward's, else slime's own options'."""

    def __init__(self, args: RolloutArgs, function: RewardFunction | None) -> None:
        self._args, self._function = args, function

    def shape(self, reward: Any, source: str, *, evaluation: bool) -> Any:
        key = (self._args.eval_reward_key if evaluation else None) or self._args.reward_key
        return shaped(reward, key, source)

    async def own(self, execution: Execution, *, evaluation: bool) -> Any:
        """The reward that the agent or `agl.reward` gives; None when neither does."""
        if execution.reward is not None:
            return self.shape(
                execution.reward, f"the agent's reward in rollout {execution.rollout_id}", evaluation=evaluation
            )
        if self._function is not None:
            reward = await ask(self._function, execution)
            return self.shape(reward, f"agl.reward on rollout {execution.rollout_id}", evaluation=evaluation)
        return None

    async def score(self, samples: Sequence[Sample]) -> None:
        """Ask slime's reward options for the samples that have no reward yet.

        Raises:
            RewardError: no option is set.
        """
        waiting = [sample for sample in samples if sample.reward is None]
        if not waiting:
            return
        self._require_option(waiting[0])
        if len(waiting) == 1:
            rewards = [await async_rm(self._args.raw, waiting[0])]
        else:
            rewards = await batched_async_rm(self._args.raw, waiting)
        for sample, reward in zip(waiting, rewards, strict=True):
            sample.reward = reward

    async def score_group(self, group: Sequence[list[Sample]]) -> None:
        """With --group-rm: one call for the whole group, in the shape slime shows groups; placeholders keep their reward."""
        self._require_option(group[0][0])
        shown = [entry[0] for entry in group] if all(len(entry) == 1 for entry in group) else list(group)
        kept = {id(sample): sample.reward for entry in group for sample in entry if sample.remove_sample}
        rewards = await batched_async_rm(self._args.raw, shown)
        for entry, reward in zip(group, rewards, strict=True):
            several = reward if isinstance(reward, list | tuple) else [reward] * len(entry)
            for sample, value in zip(entry, several, strict=True):
                sample.reward = kept.get(id(sample), value)

    def _require_option(self, sample: Sample) -> None:
        if not has_reward_option(self._args.raw, sample):
            raise RewardError(
                f"sample {sample.index} has no reward: its agent neither returned nor emitted one, and no reward option is set. "
                "Return a number from the agent, call agl.emit_reward, set agl.reward, or pass --custom-rm-path or --rm-type"
            )
