"""A training step: start groups, complete, filter and return them; put back, park, or leave the rest running."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from slime_agl.errors import ConfigError, HostError
from slime_agl.executor.entry import Entry, Limits
from slime_agl.executor.executor import Executor
from slime_agl.executor.parcel import widen
from slime_agl.executor.teachers import teaching
from slime_agl.host import (
    DynamicFilterOutput,
    MetricGatherer,
    RolloutArgs,
    RolloutFnTrainOutput,
    Sample,
    call_dynamic_filter,
    load_function,
    should_drop_dynamic_filter_output,
)
from slime_agl.loops import Work
from slime_agl.rollout.admission import Admission, Bounded, Held
from slime_agl.rollout.ending import Ending
from slime_agl.rollout.filling import fill
from slime_agl.rollout.groups import run_group
from slime_agl.rollout.lasting import ABORTED, LIMIT, Lasting
from slime_agl.rollout.offpolicy import mask_older
from slime_agl.rollout.pool import ActiveGroup, Group, nbytes_of
from slime_agl.rollout.recorder import Books
from slime_agl.runtime import Runtime

logger = logging.getLogger(__name__)

MANY_BATCHES = 8


class TrainStep:
    """One training step. `run` returns its output, or raises once everything has ended and all groups are put back.

    admission: when groups start and which are taken. ending: handles the groups that this batch does not need.
    """

    def __init__(
        self,
        *,
        args: RolloutArgs,
        number: int,
        runtime: Runtime,
        executor: Executor,
        lasting: Lasting,
        books: Books,
        admission: Admission,
        ending: Ending,
        data_source: Any,
    ) -> None:
        self._args, self._number, self._runtime, self._executor = args, number, runtime, executor
        self._books, self._tally, self._source = books, books.tally, data_source
        self._lasting, self._pool, self._brake = lasting, lasting.pool, lasting.brake
        if runtime.most_bytes is not None:
            batch = args.rollout_batch_size
            admission = Bounded(admission, runtime.most_bytes, batch, self._held, lasting.register.warn_once)
        self._admission, self._ending = admission, ending
        self._limits = Limits(args.rollout_max_response_len, args.rollout_max_context_len)
        self._filter = load_function(args.dynamic_sampling_filter_path) if args.dynamic_sampling_filter_path else None
        self._dropped = MetricGatherer()
        self._everything: list[list[Entry]] = []
        self._kept: list[tuple[ActiveGroup, list[Entry]]] = []
        self._let_go: list[Group] = []
        self._filtered = self._masked = 0
        self._needs_trained_tokens = args.trainer.needs_trained_tokens
        self._began = time.monotonic()

    async def run(self) -> RolloutFnTrainOutput:
        target = self._args.rollout_batch_size
        try:
            self._brake.begin()
            await self._runtime.resume()  # what the step before has parked, even if this one parks nothing
            await self._ending.begin(self._number)
            version = await self._version()
            with tqdm(total=target * self._args.n_samples_per_prompt, desc="Rollout generation") as progress:
                while len(self._kept) < target:
                    self._admit()
                    active = await self._pool.next(self._may_wait)
                    if self._keeps(active, self._finished(active, version)):
                        progress.update(len(active.group))
            for entries in await self._ending.end(self._number):
                self._everything.append(entries)
                self._books.enter(entries, "over_sampled")
            await self._count(time.monotonic() - self._began)
            return self._output()
        except BaseException:
            await self._give_all_back()
            raise

    async def _version(self) -> str | None:
        """Version of the weights if tokens of other versions are to be masked, else None.

        Raises:
            ConfigError: the engine does not report it.
        """
        if not (self._args.partial_rollout and self._args.mask_offpolicy_in_partial_rollout):
            return None
        version = await self._runtime.weight_version()
        if not version:
            raise ConfigError(
                "--mask-offpolicy-in-partial-rollout needs engines that tell the version of their weights "
                "(`weight_version` in /get_model_info), and these do not; leave the flag out"
            )
        return version

    def _may_wait(self, place: int, active: ActiveGroup) -> bool:
        return self._admission.may_wait(len(self._kept), place, active)

    def _admit(self) -> None:
        while count := self._admission.wanted(len(self._kept), len(self._pool), self._pool.slow(self._number)):
            groups = self._pool.fetch(self._source, count)
            if not groups:
                self._exhausted(count)
                return
            for group in groups:
                self._start(group)

    def _held(self) -> Held:
        pool = self._pool
        return Held(sum(nbytes_of(active) for active, _ in self._kept), pool.nbytes, pool.under_way, pool.largest)

    def _exhausted(self, count: int) -> None:
        missing = self._args.rollout_batch_size - len(self._kept) - len(self._pool)
        if missing > 0:
            raise HostError(
                f"the data source gave 0 groups when asked for {count}; {missing} more are needed for "
                f"--rollout-batch-size {self._args.rollout_batch_size}"
            )

    def _start(self, group: Group) -> None:
        wanted = self._args.n_samples_per_prompt
        if len(group) != wanted:
            raise HostError(f"the data source gave a group of {len(group)} samples, --n-samples-per-prompt is {wanted}")
        samplings = [self._args.sampling_params(seed_offset=at) for at in range(wanted)]

        def work(active: ActiveGroup) -> Work[list[Entry]]:
            return run_group(self._executor.watched_by(active), group, samplings, self._limits)

        self._pool.start(group, work)

    def _finished(self, active: ActiveGroup, version: str | None) -> list[Entry]:
        """The entries of a finished group, masked and marked for this step if it began in an earlier one."""
        entries = active.task.result()
        if active.age(self._number):
            entries = entries if version is None else [mask_older(entry, version) for entry in entries]
            for entry in entries:
                _show_age(entry, active.step, time.monotonic() - self._began)
        self._everything.append(entries)
        return entries

    def _keeps(self, active: ActiveGroup, entries: list[Entry]) -> bool:
        """Keep or drop a finished group; a group without a usable execution, or filtered out, is replaced."""
        if not any(entry.usable for entry in entries):
            self._brake.failed([entry.summary for entry in entries])
            self._drop(active, entries, "failed")
            return False
        self._brake.works()
        if self._needs_trained_tokens and not all(_trains(sample) for entry in entries for sample in entry.samples):
            self._drop(active, entries, "masked")
            self._note_masked()
            return False
        output = self._verdict(entries)
        in_play = len(self._kept) + len(self._pool)
        target = self._args.rollout_batch_size
        if should_drop_dynamic_filter_output(output, remaining_batch_size=in_play, target_data_size=target):
            self._dropped.on_dynamic_filter_drop(reason=output.reason)
            self._drop(active, entries, "filtered")
            self._note_filtered()
            return False
        self._pool.remove(active)
        self._kept.append((active, entries))
        return True

    def _verdict(self, entries: list[Entry]) -> DynamicFilterOutput:
        """Apply the dynamic filter to a group.

        Raises:
            ConfigError: it fails on a group in which an execution gave several Samples, as filters for Samples do.
        """
        try:
            return call_dynamic_filter(self._filter, self._args.raw, as_slime_sees(entries))
        except Exception as error:
            # The filter is slime's or the user's: the error it raises on a list does not mention the list.
            counts = [len(entry.samples) for entry in entries]
            if max(counts) == 1:
                raise
            raise ConfigError(
                f"{self._args.dynamic_sampling_filter_path} failed ({type(error).__name__}: {error}) on a group whose "
                f"{len(counts)} executions gave {', '.join(map(str, counts))} Samples; it is shown a list of Samples "
                "for each of them. Use --dynamic-sampling-filter-path slime_agl.reward.check_reward_nonzero_std in "
                "place of slime's filter of that name, or let your filter take lists"
            ) from error

    def _drop(self, active: ActiveGroup, entries: list[Entry], reason: str) -> None:
        self._pool.remove(active)
        self._let_go.append(active.group)
        self._lasting.outstanding.forget([active.group])
        self._tally.count(f"dropped_groups/{reason}")
        self._books.enter(entries, reason)

    def _note_masked(self) -> None:
        """Warn once per step that few groups are whole, since the step ends only when the batch is full."""
        self._masked += 1
        if self._masked == MANY_BATCHES * self._args.rollout_batch_size:
            logger.warning(
                "--advantage-estimator reinforce_plus_plus takes no masked Sample, so a group with a failed execution "
                "is replaced: %d in step %d so far, and %d of %d are kept; reinforce_plus_plus_baseline has no such "
                "limit",
                self._masked,
                self._number,
                len(self._kept),
                self._args.rollout_batch_size,
            )

    def _note_filtered(self) -> None:
        """Warn once per step that the filter keeps few groups, since the step ends only when the batch is full."""
        self._filtered += 1
        target = self._args.rollout_batch_size
        if self._filtered == MANY_BATCHES * target:
            logger.warning(
                "--dynamic-sampling-filter-path %s has dropped %d groups in step %d and kept %d of the %d that a batch "
                "needs; its reasons: %s",
                self._args.dynamic_sampling_filter_path,
                self._filtered,
                self._number,
                len(self._kept),
                target,
                self._dropped.collect() or "none given",
            )

    async def _give_all_back(self) -> None:
        """Put every group back, kept, dropped, finished or running: a failed step has taken none."""
        everything = [*(active for active, _ in self._kept), *await self._pool.end_all()]
        if groups := [*self._let_go, *(active.group for active in everything)]:
            self._pool.put_back(groups)

    async def _count(self, seconds: float) -> None:
        """Count and record the batch, and what was lost on the way to it."""
        for _, entries in self._kept:
            self._books.enter(entries)
        self._lasting.outstanding.deliver(self._number, [active.group for active, _ in self._kept])
        counts = await self._lasting.new_counts()
        self._tally.lose("aborted", counts.pop(ABORTED))
        for name, count in counts.items():
            self._tally.count(name, count)
        if self._lasting.limit is not None:
            self._tally.put(LIMIT, self._lasting.limit)
        self._ending.count(self._tally, [active.age(self._number) for active, _ in self._kept], seconds)

    def _output(self) -> RolloutFnTrainOutput:
        raw = self._args.raw
        batch = sorted((entries for _, entries in self._kept), key=_position)
        widen(sample for entries in batch for entry in entries for sample in entry.samples)
        samples = nested(batch)
        if self._executor.teachers is not None:
            for name, value in teaching(
                sample for entries in batch for entry in entries for sample in entry.samples
            ).items():
                self._tally.put(name, value)
        if self._args.rollout_sample_filter_path:
            load_function(self._args.rollout_sample_filter_path)(raw, samples)
        schedule = self._args.trainer.schedule
        if schedule is not None and isinstance(samples[0][0], list):
            self._tally.count("batch_filling_samples", fill(samples, schedule))
        if self._args.rollout_all_samples_process_path:
            process = load_function(self._args.rollout_all_samples_process_path)
            process(raw, [as_slime_sees(entries) for entries in sorted(self._everything, key=_position)], self._source)
        return RolloutFnTrainOutput(samples=samples, metrics=self._dropped.collect() | self._tally.metrics())


def _show_age(entry: Entry, started: int | None, seconds: float) -> None:
    """Mark an entry that began in an earlier step. seconds: how long this step has lasted.

    slime subtracts `non_generation_time` from the duration of the step that delivers a Sample, so only the share that
    fell into this step may count.
    """
    share = min(1.0, seconds / entry.summary.seconds) if entry.summary.seconds > 0 else 1.0
    for sample in entry.samples:
        sample.metadata.setdefault("start_rollout_id", started)
        sample.non_generation_time *= share


def _trains(sample: Sample) -> bool:
    return not sample.remove_sample and any(sample.loss_mask or ())


def _position(entries: list[Entry]) -> int:
    first = entries[0].samples[0]
    return (first.rollout_id or 0) if first.index is None else first.index


def as_slime_sees(entries: Sequence[Entry]) -> list[Any]:
    """A group in slime's shape: Samples, or lists of Samples if any execution gave several."""
    if all(len(entry.samples) == 1 for entry in entries):
        return [entry.samples[0] for entry in entries]
    return [entry.samples for entry in entries]


def nested(groups: Sequence[Sequence[Entry]]) -> list[list[Any]]:
    """Groups with one depth over the whole batch: Samples everywhere, or lists of Samples everywhere."""
    if all(len(entry.samples) == 1 for group in groups for entry in group):
        return [[entry.samples[0] for entry in group] for group in groups]
    return [[list(entry.samples) for entry in group] for group in groups]
