"""An evaluation: one execution per row and sample of slime's eval datasets."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from slime_agl.errors import AgentError, ConfigError
from slime_agl.executor.entry import Entry, Limits
from slime_agl.executor.executor import Executor
from slime_agl.host import EvalPrompts, RolloutArgs, RolloutFnEvalOutput, Sample, eval_entry
from slime_agl.loops import ended
from slime_agl.rollout.brake import Brake, all_failed, refuse_unrewarded
from slime_agl.rollout.recorder import Books

logger = logging.getLogger(__name__)


async def evaluate(
    args: RolloutArgs, executor: Executor, prompts: EvalPrompts, books: Books, brake: Brake
) -> RolloutFnEvalOutput:
    """Run all eval datasets concurrently; one Sample per execution, in row order.

    Raises:
        ConfigError: --group-rm, which slime has for training only.
        AgentError: no execution of a dataset was usable, nor any before in this run. Once something has worked, this
            is logged instead: an evaluation does not end a working run.
    """
    if args.group_rm:
        raise ConfigError(
            "--group-rm has no meaning in an evaluation; give the eval dataset a custom_rm_path of its own"
        )
    tasks = [
        asyncio.ensure_future(_one(args, executor, prompts, config, books, brake)) for config in args.eval_datasets
    ]
    try:
        results = await asyncio.gather(*tasks)
    except BaseException:
        await ended(tasks)
        raise
    data = {config.name: result for config, result in zip(args.eval_datasets, results, strict=True)}
    return RolloutFnEvalOutput(data=data, metrics=books.tally.metrics())


async def _one(
    args: RolloutArgs, executor: Executor, prompts: EvalPrompts, config: Any, books: Books, brake: Brake
) -> dict[str, list[Any]]:
    async def run(sample: Sample, sampling: Mapping[str, object]) -> Entry:
        entry = await executor.run(sample, sampling, limits)
        books.enter([entry])
        return entry

    limits = Limits(config.max_response_len or args.rollout_max_response_len, args.eval_max_context_len)
    tasks = []
    for at, sample in enumerate(prompts.samples(config)):
        sampling = args.eval_sampling_params(config, seed_offset=at % config.n_samples_per_eval_prompt)
        tasks.append(asyncio.ensure_future(run(sample, sampling)))
    try:
        entries = await _gathered(tasks, f"Eval {config.name}")
    except BaseException:
        await ended(tasks)
        raise
    if entries and not any(entry.usable for entry in entries):
        executions = [entry.summary for entry in entries]
        error = next((execution.error for execution in executions if execution.error), "")
        kinds = Counter(execution.failure for execution in executions)
        message = all_failed(f"eval dataset {config.name}", kinds, error)
        if not brake.worked:
            refuse_unrewarded(kinds, error)
            raise AgentError(message)
        logger.error("%s", message)
    elif entries:
        brake.works()
    return eval_entry(args, [entry.samples[0] for entry in entries])


async def _gathered(tasks: list[asyncio.Task[Entry]], title: str) -> list[Entry]:
    with tqdm(total=len(tasks), desc=title) as progress:
        for task in tasks:
            task.add_done_callback(lambda _: progress.update(1))
        return list(await asyncio.gather(*tasks))
