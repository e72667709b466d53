"""An evaluation: one execution per row and sample of slime's eval datasets."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from slime_agl.errors import AgentError, ConfigError
from slime_agl.executor.entry import Entry, Limits
from slime_agl.executor.executor import Executor
from slime_agl.host import EvalPrompts, RolloutArgs, RolloutFnEvalOutput, Sample, eval_entry
from slime_agl.loops import ended
from slime_agl.rollout.brake import Brake, all_failed, refuse_unrewarded
from slime_agl.rollout.passing import put_figures
from slime_agl.rollout.pinned import Pinned
from slime_agl.rollout.recorder import Books

logger = logging.getLogger(__name__)


async def evaluate(
    args: RolloutArgs, executor: Executor, prompts: EvalPrompts, books: Books, brake: Brake
) -> RolloutFnEvalOutput:
    """Run all eval datasets concurrently; one Sample per execution, in row order.

    Under `agl.async`, executions that a weight update has overtaken run again, so that all tokens are of one version
    (see `Pinned`).

    Raises:
        ConfigError: --group-rm, which slime has for training only.
        AgentError: no execution of a dataset was usable, nor any before in this run. Once something has worked, this
            is logged instead: an evaluation does not end a working run.
    """
    if args.group_rm:
        raise ConfigError(
            "--group-rm has no meaning in an evaluation; give the eval dataset a custom_rm_path of its own"
        )
    pinned = Pinned(executor.runtime, books.tally)
    datasets = [_Dataset(args, executor, prompts, config, books, pinned) for config in args.eval_datasets]
    await _together([dataset.run() for dataset in datasets])
    while any(again := [pinned.overtaken(dataset.entries) for dataset in datasets]) and await pinned.repeats():
        await _together([dataset.repeat(places) for dataset, places in zip(datasets, again, strict=True)])
    data = {}
    for dataset in datasets:
        dataset.enter_rest()
        _judge(dataset.config.name, dataset.entries, brake)
        data[dataset.config.name] = result = eval_entry(args, [entry.samples[0] for entry in dataset.entries])
        put_figures(books.tally, dataset.config, result["rewards"], dataset.entries, executor.runtime.config)
    pinned.close([entry for dataset in datasets for entry in dataset.entries])
    return RolloutFnEvalOutput(data=data, metrics=books.tally.metrics())


class _Dataset:
    """The executions of one dataset. entries: in row order, the latest of each."""

    def __init__(
        self,
        args: RolloutArgs,
        executor: Executor,
        prompts: EvalPrompts,
        config: Any,
        books: Books,
        pinned: Pinned,
    ) -> None:
        self.config = config
        self.entries: list[Entry] = []
        self._args, self._executor, self._books, self._pinned = args, executor, books, pinned
        self._samples: list[Sample] = prompts.samples(config)
        self._limits = Limits(config.max_response_len or args.rollout_max_response_len, args.eval_max_context_len)

    async def run(self) -> None:
        self.entries = await self._executed(range(len(self._samples)), f"Eval {self.config.name}")

    async def repeat(self, places: Sequence[int]) -> None:
        """Run the executions at these places again; they replace those before, which are counted as unused."""
        title = f"Eval {self.config.name}, again for new weights"
        for at, entry in zip(places, await self._executed(places, title), strict=True):
            self._books.enter([self.entries[at]], "older_weights")
            self.entries[at] = entry

    def enter_rest(self) -> None:
        """Enter what was held back because it might have had to run again."""
        if self._pinned.holds:
            for at, entry in enumerate(self.entries):
                self._enter(at, entry)

    async def _executed(self, places: Sequence[int], title: str) -> list[Entry]:
        tasks = [asyncio.ensure_future(self._one(at)) for at in places]
        try:
            return await _gathered(tasks, title)
        except BaseException:
            await ended(tasks)
            raise

    async def _one(self, at: int) -> Entry:
        offset = at % self.config.n_samples_per_eval_prompt
        sampling = self._args.eval_sampling_params(self.config, seed_offset=offset)
        entry = await self._executor.run(self._samples[at], sampling, self._limits)
        if not self._pinned.holds:
            self._enter(at, entry)
        return entry

    def _enter(self, at: int, entry: Entry) -> None:
        prompt = at // self.config.n_samples_per_eval_prompt
        self._books.enter([entry], dataset=self.config.name, prompt=prompt)


def _judge(name: str, entries: Sequence[Entry], brake: Brake) -> None:
    """Raise, or log, that nothing of a dataset was usable."""
    if entries and not any(entry.usable for entry in entries):
        executions = [entry.summary for entry in entries]
        error = next((execution.error for execution in executions if execution.error), "")
        kinds = Counter(execution.failure for execution in executions)
        message = all_failed(f"eval dataset {name}", kinds, error)
        if not brake.worked:
            refuse_unrewarded(kinds, error)
            raise AgentError(message)
        logger.error("%s", message)
    elif entries:
        brake.works()


async def _together(works: Sequence[Any]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await ended(tasks)
        raise


async def _gathered(tasks: list[asyncio.Task[Entry]], title: str) -> list[Entry]:
    with tqdm(total=len(tasks), desc=title) as progress:
        for task in tasks:
            task.add_done_callback(lambda _: progress.update(1))
        return list(await asyncio.gather(*tasks))
