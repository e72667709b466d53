"""An evaluation: every row of slime's eval datasets, executed in mode `val`."""

from __future__ import annotations

import asyncio
from typing import Any

from tqdm import tqdm

from slime_agl.errors import AgentError, ConfigError
from slime_agl.host import EvalPrompts, RolloutArgs, RolloutFnEvalOutput, Sample, eval_entry
from slime_agl.rollout.books import Books
from slime_agl.rollout.executions import Entry, Executor, Limits, ended
from slime_agl.rollout.train import all_failed


async def evaluate(args: RolloutArgs, executor: Executor, prompts: EvalPrompts, books: Books) -> RolloutFnEvalOutput:
    """Run all eval datasets side by side; one Sample an execution, in row order.

    Raises:
        ConfigError: --group-rm, which slime has for training only.
        AgentError: no execution of a dataset was usable.
    """
    if args.group_rm:
        raise ConfigError(
            "--group-rm has no meaning in an evaluation; give the eval dataset a custom_rm_path of its own"
        )
    tasks = [asyncio.ensure_future(_one(args, executor, prompts, config, books)) for config in args.eval_datasets]
    try:
        results = await asyncio.gather(*tasks)
    except BaseException:
        await ended(tasks)
        raise
    data = {config.name: result for config, result in zip(args.eval_datasets, results, strict=True)}
    return RolloutFnEvalOutput(data=data, metrics=books.tally.metrics())


async def _one(
    args: RolloutArgs, executor: Executor, prompts: EvalPrompts, config: Any, books: Books
) -> dict[str, list[Any]]:
    async def run(sample: Sample, sampling: dict[str, Any]) -> Entry:
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
        first = entries[0].execution
        raise AgentError(
            all_failed(f"all {len(entries)} executions of eval dataset {config.name}", first.failure, first.error)
        )
    return eval_entry(args, [entry.samples[0] for entry in entries])


async def _gathered(tasks: list[asyncio.Task[Entry]], title: str) -> list[Entry]:
    with tqdm(total=len(tasks), desc=title) as progress:
        for task in tasks:
            task.add_done_callback(lambda _: progress.update(1))
        return list(await asyncio.gather(*tasks))
