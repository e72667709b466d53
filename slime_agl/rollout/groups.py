"""Run the executions of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from slime_agl.errors import InvariantError
from slime_agl.executor.entry import Entry, Limits
from slime_agl.executor.executor import Executor
from slime_agl.host import Sample
from slime_agl.loops import ended


async def run_group(
    executor: Executor, group: Sequence[Sample], samplings: Sequence[Mapping[str, object]], limits: Limits
) -> list[Entry]:
    """Run the executions of a group concurrently; under --group-rm, score them together.

    If one raises, or the group is cancelled, all end before the error propagates; the sampled tokens of those that had
    finished count as aborted.
    """
    tasks = [
        asyncio.ensure_future(executor.run(sample, sampling, limits))
        for sample, sampling in zip(group, samplings, strict=True)
    ]
    try:
        entries = list(await asyncio.gather(*tasks))
        if executor.args.group_rm and any(entry.usable for entry in entries):
            failed = [bool(entry.summary.failure) for entry in entries]
            await executor.rewarder.score_group([entry.samples for entry in entries], failed)
    except BaseException:
        await ended(tasks)
        over = [task for task in tasks if not task.cancelled()]
        executor.discard([task.result() for task in over if task.exception() is None])
        for error in (task.exception() for task in over):
            if isinstance(error, InvariantError):
                raise error from None
        raise
    return entries
