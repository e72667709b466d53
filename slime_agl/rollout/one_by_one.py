"""Executions that slime's own loops ask for one at a time: their step, their record and their counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from slime_agl.host import RolloutArgs, Sample
from slime_agl.rollout.books import Books
from slime_agl.rollout.executions import Entry, Limits
from slime_agl.rollout.recorder import Recorder
from slime_agl.rollout.register import Register
from slime_agl.rollout.support import warn
from slime_agl.rollout.tally import Tally
from slime_agl.rollout.workshop import Workshop
from slime_agl.runtime import Runtime

logger = logging.getLogger(__name__)


class OneByOne:
    """Lives as long as the runtime, on its loop. slime's loops take no metrics from us: a step's are logged at its end.

    An execution is entered into the books of the step in which it ends.
    """

    def __init__(self, runtime: Runtime, register: Register) -> None:
        self._runtime, self._register = runtime, register
        self._number = -1
        self._books: dict[bool, tuple[Books, Recorder]] = {}
        self._beginning = asyncio.Lock()

    async def run(
        self, args: RolloutArgs, number: int, sample: Sample, sampling: Mapping[str, Any], limits: Limits,
        *, evaluation: bool,
    ) -> Entry:  # fmt: skip
        """Run the agent on one Sample in step `number`; hooks and reward options are left to the caller."""
        await self._join(args, number)
        executor = Workshop(self._runtime.config, args).executor(
            self._runtime, self._register, number, evaluation=evaluation, bare=True
        )
        if not evaluation:
            warn(args, self._register)
        entry = await executor.run(sample, sampling, limits)
        self._books_for(args, evaluation).enter([entry])
        return entry

    async def close(self) -> None:
        """Close the books of the step, and log what they say."""
        for books, recorder in self._books.values():
            recorder.close()
            logger.info("step %d in slime's own loop: %s", self._number, books.tally.metrics())
        self._books.clear()

    async def _join(self, args: RolloutArgs, number: int) -> None:
        async with self._beginning:
            if number > self._number:
                await self.close()
                self._number = number
                await self._runtime.begin_step(number, args.rollout_temperature, args.rollout_top_p)

    def _books_for(self, args: RolloutArgs, evaluation: bool) -> Books:
        if evaluation not in self._books:
            recorder = Recorder(self._runtime, args, "eval" if evaluation else "step", self._number)
            self._books[evaluation] = Books(Tally("eval" if evaluation else "rollout"), recorder), recorder
        return self._books[evaluation][0]
