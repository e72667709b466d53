"""Executions that slime's own loops request one at a time: their step, record and counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from slime_agl.executor.entry import Entry, Limits
from slime_agl.executor.register import Register
from slime_agl.executor.workshop import Workshop
from slime_agl.host import RolloutArgs, Sample
from slime_agl.rollout.recorder import Books
from slime_agl.rollout.refusals import warn
from slime_agl.runtime import Runtime

logger = logging.getLogger(__name__)


class OneByOne:
    """Runs single executions on the runtime's loop. slime's loops accept no metrics: they are logged at a step's end.

    An execution is entered in the books of the step in which it ends.
    """

    def __init__(self, runtime: Runtime, register: Register) -> None:
        self._runtime, self._register = runtime, register
        self._number = -1
        self._books: dict[bool, Books] = {}
        self._beginning = asyncio.Lock()

    async def run(
        self,
        args: RolloutArgs,
        number: int,
        sample: Sample,
        sampling: Mapping[str, object],
        limits: Limits,
        *,
        evaluation: bool,
    ) -> Entry:
        """Run the agent on one Sample in step `number`; the caller runs hooks and reward options."""
        await self._join(args, number)
        executor = Workshop(self._runtime.config, args).executor(
            self._runtime, self._register, number, evaluation=evaluation, bare=True
        )
        if not evaluation:
            warn(args, self._register, self._runtime.config)
        entry = await executor.run(sample, sampling, limits)
        self._books_for(args, evaluation).enter([entry])
        return entry

    async def close(self) -> None:
        """Close the books of the step and log their metrics."""
        for books in self._books.values():
            await books.settle()
            books.close()
            logger.info("step %d in slime's own loop: %s", self._number, books.tally.metrics())
        self._books.clear()

    async def _join(self, args: RolloutArgs, number: int) -> None:
        async with self._beginning:
            if number > self._number:
                await self.close()
                self._number = number
                await self._runtime.equip(vars(args.raw))
                await self._runtime.begin_step(number, args.rollout_temperature, args.rollout_top_p)

    def _books_for(self, args: RolloutArgs, evaluation: bool) -> Books:
        if evaluation not in self._books:
            self._books[evaluation] = Books(self._runtime, args, self._number, evaluation=evaluation)
        return self._books[evaluation]
