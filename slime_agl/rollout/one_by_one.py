"""Executions that slime's own loops ask for one at a time: their step, their record and their counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from slime_agl.host import RolloutArgs, Sample
from slime_agl.reward import load_reward_function
from slime_agl.rollout.books import Books
from slime_agl.rollout.executions import Entry, Executor, Limits
from slime_agl.rollout.recorder import Recorder
from slime_agl.rollout.rewards import Rewarder
from slime_agl.rollout.samples import SampleBuilder
from slime_agl.rollout.support import warn
from slime_agl.rollout.tally import Tally
from slime_agl.rollout.tasks import task_builder
from slime_agl.runtime import Runtime, Step

logger = logging.getLogger(__name__)


class OneByOne:
    """Lives as long as the runtime, on its loop. slime's loops take no metrics from us: a step's are logged at its end.

    An execution is entered into the books of the step in which it ends.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._number = -1
        self._books: dict[bool, tuple[Books, Recorder]] = {}
        self._beginning = asyncio.Lock()

    async def run(
        self, args: RolloutArgs, number: int, sample: Sample, sampling: Mapping[str, Any], limits: Limits,
        *, evaluation: bool,
    ) -> Entry:  # fmt: skip
        """Run the agent on one Sample in step `number`; hooks and reward options are left to the caller."""
        config = self._runtime.config
        rewarder = Rewarder(args, load_reward_function(config.reward), config.credit)
        executor = Executor(
            self._runtime, args, await self._join(args, number), mode="val" if evaluation else "train",
            tasks=task_builder(config.task), builder=SampleBuilder(args, self._runtime.renderer), rewarder=rewarder,
            bare=True,
        )  # fmt: skip
        if not evaluation:
            warn(args, self._runtime)
        entry = await executor.run(sample, sampling, limits)
        self._books_for(args, evaluation).enter([entry])
        return entry

    async def close(self) -> None:
        """Close the books of the step, and log what they say."""
        for books, recorder in self._books.values():
            recorder.close()
            logger.info("step %d in slime's own loop: %s", self._number, books.tally.metrics())
        self._books.clear()

    async def _join(self, args: RolloutArgs, number: int) -> Step:
        async with self._beginning:
            if number > self._number:
                await self.close()
                self._number = number
                await self._runtime.begin_step(number, args.rollout_temperature, args.rollout_top_p)
            # Which may be another one by now: slime_agl's own evaluation begins a step too.
            return self._runtime.latest_step

    def _books_for(self, args: RolloutArgs, evaluation: bool) -> Books:
        if evaluation not in self._books:
            recorder = Recorder(self._runtime, args, "eval" if evaluation else "step", self._number)
            self._books[evaluation] = Books(Tally("eval" if evaluation else "rollout"), recorder), recorder
        return self._books[evaluation][0]
