"""Turn a Sample of the data source into an execution, and that into Samples with rewards."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slime_agl.config import FailureConfig
from slime_agl.execution import Execution, Job, Watcher
from slime_agl.executor.entry import Entry, Limits, summary_of
from slime_agl.executor.fan_out import check_fan_out, warn_of_many_samples
from slime_agl.executor.parcel import unpacked
from slime_agl.executor.register import Register
from slime_agl.executor.replay import require_replay
from slime_agl.executor.rewards import Rewarder, no_reward
from slime_agl.executor.samples import SampleBuilder, give_credit
from slime_agl.executor.tasks import TaskBuilder
from slime_agl.executor.teachers import Teachers
from slime_agl.gateway.refusal import CONTEXT_OVERFLOW
from slime_agl.host import RolloutArgs, Sample, apply_rollout_sample_hooks
from slime_agl.reward import ShapedReward
from slime_agl.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Instructions for a worker: the arguments of `Executor.entry`, and the settings of the executor.

    keep: the execution will be asked for, for a record or a reward.
    """

    source: Sample
    number: int
    step: int
    evaluation: bool
    bare: bool
    keep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Runs the executions of one step, in training or evaluation.

    bare: leave slime's sample hooks and reward options to the caller. max_attempts, watcher: see Job.
    teachers: score the Samples of training, None without `agl.teacher`.
    """

    runtime: Runtime
    register: Register
    args: RolloutArgs
    failure: FailureConfig
    step: int
    evaluation: bool
    tasks: TaskBuilder
    builder: SampleBuilder
    rewarder: Rewarder
    teachers: Teachers | None = None
    bare: bool = False
    max_attempts: int | None = None
    watcher: Watcher | None = None

    def watched_by(self, watcher: Watcher) -> Executor:
        """A copy with another watcher."""
        return dataclasses.replace(self, watcher=watcher)

    async def run(self, source: Sample, sampling: Mapping[str, object], limits: Limits) -> Entry:
        """Run the agent on one Sample. A failed execution is data: it returns as a masked placeholder.

        Raises: as `entry`.
        """
        session_key = source.session_id or str(uuid.uuid4())
        order = Order(
            source=source,
            number=self._number(source),
            step=self.step,
            evaluation=self.evaluation,
            bare=self.bare,
            keep=self.bare or self.args.group_rm or self.runtime.config.record_dir is not None,
        )
        done = await self.runtime.perform(self._job(source, sampling, limits, session_key), order)
        if isinstance(done, Execution):
            entry = await self.entry(source, done, number=order.number)
        else:
            entry = unpacked(done.result, done)
        for sample in entry.samples:
            sample.session_id = session_key
        return entry

    async def execute(
        self, source: Sample, sampling: Mapping[str, object], limits: Limits, *, session_key: str
    ) -> Execution:
        """First half of `run`: the agent. session_key: pins its turns to one engine."""
        return await self.runtime.execute(self._job(source, sampling, limits, session_key))

    def _job(self, source: Sample, sampling: Mapping[str, object], limits: Limits, session_key: str) -> Job:
        return Job(
            task=self.tasks(source),
            lane="val" if self.evaluation else "train",
            session_key=session_key,
            sampling=sampling,
            response_limit=limits.response,
            context_limit=limits.context,
            experts_width=None if self.evaluation else self.args.experts_width,
            max_attempts=self.max_attempts,
            watcher=self.watcher,
        )

    def _number(self, source: Sample) -> int:
        return source.index if source.index is not None else self.register.next_number()

    def _judged(self, source: Sample, execution: Execution) -> Execution:
        """Judge an execution by its reward: without one it failed; with one, a full context is not a failure."""
        if not execution.segments:
            return execution
        rewarded = self.rewarder.can_reward(execution, source)
        if not execution.failure and not rewarded and not self.bare:
            return dataclasses.replace(execution, failure="no_reward", error=no_reward(execution.rollout_id))
        if rewarded and cut_by_context(execution):
            # What it did so far trains; the Sample that ran out of context is marked as truncated.
            counters = execution.counters + Counter(cut_by_context=1)
            return dataclasses.replace(execution, failure="", counters=counters)
        return execution

    def discard(self, entries: Sequence[Entry]) -> None:
        """Count the sampled tokens of finished executions as lost: their group is given up."""
        for entry in entries:
            self.register.lose(entry.summary.sampled)

    async def entry(self, source: Sample, execution: Execution, *, number: int | None = None) -> Entry:
        """Second half of `run`: Samples and rewards. number: their rollout_id; by default the source's index.

        Raises:
            RewardError: `agl.reward` or slime's reward option gives none.
            InvariantError: a Sample differs from what the engine received and answered, or lacks replay data.
            TeacherError: `agl.teacher` does not score a Sample.
        """
        entry = await self._made(source, execution, self._number(source) if number is None else number)
        if not self.evaluation:
            for sample in entry.samples:
                require_replay(self.args, sample)
            if self.teachers is not None:
                await self.teachers.fill(entry.samples, execution)
        return entry

    async def _made(self, source: Sample, execution: Execution, number: int) -> Entry:
        execution = self._judged(source, execution)
        build = self.builder.build
        if any(turn.media is not None for turn in execution.ledger.turns):
            samples = await asyncio.to_thread(build, source, execution, number)  # processing images is slow
        else:
            samples = build(source, execution, number)
        if not self.evaluation:
            check_fan_out(self.args, execution, samples)
            warn_of_many_samples(execution, self.register)
        policy = self.failure.policy(execution.failure) if execution.failure else ""
        if policy in ("mask", "retry") or not samples:
            return await self._failed(source, execution, number, samples)
        negative = self.failure.negative_reward if policy == "negative" else None
        rewards = await self._rewards(execution, negative)
        for sample, reward in zip(samples, rewards, strict=True):
            sample.reward = reward
        if self.evaluation:
            samples = [_last(samples, execution)]
        else:
            for sample, turns in zip(samples, await self.rewarder.turns(execution, negative), strict=True):
                give_credit(sample, turns)
        samples = await self._hooked(samples)
        if not (self.bare or (self.args.group_rm and not self.evaluation)):
            await self.rewarder.score(samples, evaluation=self.evaluation)
        return Entry(samples, summary_of(execution), usable=True, kept=execution)

    async def _rewards(self, execution: Execution, negative: float | None) -> Sequence[ShapedReward | None]:
        """One reward per segment; an evaluation reports the outcome whatever `agl.credit` says."""
        if negative is not None:
            return [self._of_failure(negative)] * len(execution.segments)
        if self.evaluation:
            return [await self.rewarder.own(execution, evaluation=True)] * len(execution.segments)
        return await self.rewarder.credits(execution)

    async def _failed(self, source: Sample, execution: Execution, number: int, samples: list[Sample]) -> Entry:
        """The masked placeholder. Sample hooks run on it too, so a field they set is on every Sample of a batch."""
        reward = self._of_failure(0.0)
        if self.evaluation and samples:
            samples = [_last(samples, execution)]
        masked = (
            self.builder.mask(samples, reward)
            if samples
            else [self.builder.placeholder(source, execution, number, reward)]
        )
        masked = self.builder.mask(await self._hooked(masked), reward)
        return Entry(masked, summary_of(execution), usable=False, kept=execution)

    async def _hooked(self, samples: list[Sample]) -> list[Sample]:
        if self.bare:
            return samples
        return await apply_rollout_sample_hooks(
            self.args.raw, samples, evaluation=self.evaluation, rollout_id=self.step
        )

    def _of_failure(self, reward: float) -> ShapedReward:
        return self.rewarder.of_failure(reward, evaluation=self.evaluation)


def cut_by_context(execution: Execution) -> bool:
    """Return True if the agent ended because it did not catch the refusal of a prompt that exceeds the context."""
    told = execution.error_code == CONTEXT_OVERFLOW
    return execution.failure == "agent_error" and bool(execution.ledger.full) and told


def _last(samples: list[Sample], execution: Execution) -> Sample:
    """The Sample with the last turn: an evaluation counts an execution once."""
    ends = [segment.turns[-1].index for segment in execution.segments]
    return samples[ends.index(max(ends))]
