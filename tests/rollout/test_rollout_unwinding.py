"""A cancelled group unwinds before its error propagates, however long its executions take to end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slime_agl.executor.entry import Limits
from slime_agl.rollout.groups import run_group


class Executions:
    """Each runs until it is cancelled, and takes as many turns of the event loop to end as its source says."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended: list[int] = []

    async def run(self, source: int, *_: Any, **__: Any) -> Any:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(source):
                await asyncio.sleep(0)
            self.ended.append(source)

    def discard(self, entries: Any) -> None:
        assert list(entries) == []


async def test_a_sibling_that_ends_at_once_does_not_cut_the_end_of_a_slow_one():
    executions = Executions()
    group = asyncio.ensure_future(run_group(executions, [0, 9, 3], [{}] * 3, Limits(None, None)))  # type: ignore[arg-type]
    while executions.begun < 3:
        await asyncio.sleep(0)
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert executions.ended == [0, 3, 9]
