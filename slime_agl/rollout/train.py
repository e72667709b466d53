"""A training step: groups are started, completed, filtered and returned; what is left is ended and put back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from slime_agl.errors import AgentError, HostError
from slime_agl.host import (
    MetricGatherer,
    RolloutArgs,
    RolloutFnTrainOutput,
    Sample,
    call_dynamic_filter,
    load_function,
    should_drop_dynamic_filter_output,
)
from slime_agl.rollout.executions import Entry, Executor, Limits, ended, run_group
from slime_agl.rollout.rewards import Rewarder
from slime_agl.rollout.tally import Tally

logger = logging.getLogger(__name__)

Group = list[Sample]


class TrainStep:
    """One step. `run` returns the output, or raises after everything it started has ended."""

    def __init__(
        self, args: RolloutArgs, executor: Executor, rewarder: Rewarder, tally: Tally, data_source: Any
    ) -> None:
        self._args, self._executor, self._tally, self._source = args, executor, tally, data_source
        self._rewarder = rewarder if args.group_rm else None
        self._limits = Limits(args.rollout_max_response_len, args.rollout_max_context_len)
        self._filter = load_function(args.dynamic_sampling_filter_path) if args.dynamic_sampling_filter_path else None
        self._dropped = MetricGatherer()
        self._running: dict[asyncio.Task[list[Entry]], Group] = {}
        self._used: list[Group] = []
        self._unused: list[Group] = []
        self._in_play = 0
        self._failed_in_a_row = 0
        self._first_error = ""

    async def run(self) -> RolloutFnTrainOutput:
        target = self._args.rollout_batch_size
        everything: list[list[Entry]] = []
        kept: list[list[Entry]] = []
        try:
            with tqdm(total=target * self._args.n_samples_per_prompt, desc="Rollout generation") as progress:
                while len(kept) < target:
                    self._top_up(target)
                    done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        entries = task.result()
                        everything.append(entries)
                        if len(kept) == target:
                            continue  # Done in the same moment, but not needed: it is put back.
                        group = self._running.pop(task)
                        if self._keeps(entries, target):
                            kept.append(entries)
                            self._used.append(group)
                            progress.update(len(entries))
        except BaseException:
            # The step has failed: what it had finished is not delivered either.
            self._unused += self._used
            raise
        finally:
            await self._end()
        return self._output(kept, everything)

    def _top_up(self, target: int) -> None:
        while self._in_play < target:
            groups = self._source.get_samples(self._args.over_sampling_batch_size)
            if not groups:
                raise HostError(
                    f"the data source gave 0 groups when asked for {self._args.over_sampling_batch_size}; "
                    f"{target - self._in_play} more are needed for --rollout-batch-size {target}"
                )
            for group in groups:
                self._start(group)

    def _start(self, group: Group) -> None:
        wanted = self._args.n_samples_per_prompt
        if len(group) != wanted:
            raise HostError(f"the data source gave a group of {len(group)} samples, --n-samples-per-prompt is {wanted}")
        samplings = [self._args.sampling_params(seed_offset=at) for at in range(wanted)]
        task = asyncio.ensure_future(run_group(self._executor, group, samplings, self._limits, self._rewarder))
        self._running[task] = group
        self._in_play += 1

    def _keeps(self, entries: list[Entry], target: int) -> bool:
        """Whether a finished group stays; a group without a usable execution is replaced, a filtered one too."""
        if not any(entry.usable for entry in entries):
            self._in_play -= 1
            self._tally.count("dropped_groups/failed")
            self._note_failure(entries)
            return False
        self._failed_in_a_row = 0
        output = call_dynamic_filter(self._filter, self._args.raw, shown(entries))
        if should_drop_dynamic_filter_output(output, remaining_batch_size=self._in_play, target_data_size=target):
            self._dropped.on_dynamic_filter_drop(reason=output.reason)
            self._tally.count("dropped_groups/filtered")
            self._in_play -= 1
            return False
        return True

    def _note_failure(self, entries: list[Entry]) -> None:
        self._failed_in_a_row += 1
        worst = entries[0].execution
        self._first_error = self._first_error or worst.error
        limit = max(2, self._args.rollout_batch_size)
        if self._failed_in_a_row >= limit:
            raise AgentError(
                all_failed(
                    f"the last {limit} groups ({limit * len(entries)} executions)", worst.failure, self._first_error
                )
            )

    async def _end(self) -> None:
        """End what still runs, and put groups that were taken but not used back into the data source."""
        running = list(self._running)
        self._unused += self._running.values()
        self._running.clear()
        await ended(running)
        if not self._unused:
            return
        try:
            self._source.add_samples(self._unused)
            self._tally.count("put_back_groups", len(self._unused))
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            # A read-only data source cannot take groups back; then they are counted as dropped.
            self._tally.count("dropped_groups/over_sampled", len(self._unused))
            logger.warning("%d unused groups could not be put back: %s", len(self._unused), error)

    def _output(self, kept: list[list[Entry]], everything: list[list[Entry]]) -> RolloutFnTrainOutput:
        raw = self._args.raw
        samples = nested(sorted(kept, key=_position))
        if self._args.rollout_sample_filter_path:
            load_function(self._args.rollout_sample_filter_path)(raw, samples)
        if self._args.rollout_all_samples_process_path:
            process = load_function(self._args.rollout_all_samples_process_path)
            process(raw, [shown(entries) for entries in sorted(everything, key=_position)], self._source)
        return RolloutFnTrainOutput(samples=samples, metrics=self._dropped.collect() | self._tally.metrics())


def _position(entries: list[Entry]) -> Any:
    index = entries[0].samples[0].index
    return entries[0].samples[0].rollout_id if index is None else index


def shown(entries: Sequence[Entry]) -> list[Any]:
    """A group as slime shows it: Samples, or lists of them when an execution fanned out."""
    if all(len(entry.samples) == 1 for entry in entries):
        return [entry.samples[0] for entry in entries]
    return [entry.samples for entry in entries]


def nested(groups: Sequence[Sequence[Entry]]) -> list[list[Any]]:
    """Groups with one depth over the whole batch: Samples everywhere, or lists of them everywhere."""
    if all(len(entry.samples) == 1 for group in groups for entry in group):
        return [[entry.samples[0] for entry in group] for group in groups]
    return [[entry.samples for entry in group] for group in groups]


def all_failed(who: str, failure: str, error: str) -> str:
    """The message that ends a step in which nothing works."""
    if failure == "no_llm_call":
        return (
            f"{who} ended without an LLM call, so there is nothing to train on; "
            "the agent has to send its requests to the endpoint of the LLM resource it is given"
        )
    return f"{who} failed ({failure}); the first one with:\n{error.rstrip() or 'no traceback was recorded'}"
