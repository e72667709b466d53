"""A worker of a fleet that also makes Samples and rewards of its executions, and records them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slime_agl.assemble import install, make_runtime
from slime_agl.config import Config
from slime_agl.execution import Execution, Job
from slime_agl.executor.executor import Order
from slime_agl.executor.parcel import Parcel, packed
from slime_agl.executor.recording import Verdict, recorded
from slime_agl.executor.register import Register
from slime_agl.executor.workshop import Workshop
from slime_agl.host import RolloutArgs
from slime_agl.record.run import RecordWriter, worker_file
from slime_agl.runtime import Runtime
from slime_agl.workers.importable import require_importable
from slime_agl.workers.serving import hop
from slime_agl.workers.worker import Worker, name_of, origin_of

# A step and an evaluation may alternate.
RECORDS_OPEN = 2


def make_worker(config: Config, arguments: Mapping[str, Any], number: int) -> ExecutingWorker:
    """A worker of a fleet, in the process that it is meant for. arguments: slime's, by name.

    Raises: as `make_runtime`, and what starting it raises; ConfigError if the agent cannot be imported there.
    """
    require_importable(config)
    args = RolloutArgs.read(Namespace(**arguments))
    runtime = make_runtime(config, args, origin=origin_of(name_of(number)))
    worker = ExecutingWorker(runtime, Workshop(config, args), number)
    install(runtime)  # for slime_agl.reward.custom_rm
    return worker


class ExecutingWorker(Worker):
    """See Worker. number: of this worker in its fleet."""

    def __init__(self, runtime: Runtime, workshop: Workshop, number: int) -> None:
        self._workshop, self._number = workshop, number
        self._register = Register()
        self._kept: dict[int, Execution] = {}
        self._writers: dict[Path, RecordWriter] = {}
        super().__init__(runtime)

    async def equip(self, arguments: Mapping[str, Any]) -> None:
        """Take slime's arguments anew: some change from step to step."""
        self._workshop = Workshop(self.runtime.config, RolloutArgs.read(Namespace(**arguments)))

    async def perform(self, job: Job, order: Order, ticket: int) -> tuple[str, Parcel]:
        """Execute a job and make its entry; return Agent Lightning's id of the rollout, and the entry.

        Raises: as `Executor.entry`.
        """
        return await hop(self.runtime.submit, self._perform(job, order, ticket))

    async def finished(self, ticket: int) -> Execution | None:
        """An execution that was to be kept."""
        return self._kept.get(ticket)

    async def let_go(self, tickets: Sequence[int]) -> None:
        for ticket in tickets:
            self._kept.pop(ticket, None)

    async def record(
        self, path: str, header: Mapping[str, Any], found: Sequence[tuple[int, Verdict]]
    ) -> tuple[int, int]:
        """Write executions to this worker's file of a record; return the worker's number, and how many were there."""
        own = worker_file(Path(path), self._number)
        writer = self._writers.get(own)
        if writer is None:
            while len(self._writers) >= RECORDS_OPEN:
                self._writers.pop(next(iter(self._writers))).close()
            writer = self._writers[own] = RecordWriter(own, header, self.runtime.renderer.token_bytes)
        there = [(self._kept[ticket], verdict) for ticket, verdict in found if ticket in self._kept]
        for execution, verdict in there:
            writer.write(recorded(execution, verdict))
        return self._number, len(there)

    async def stop(self) -> None:
        for writer in self._writers.values():
            writer.close()
        await super().stop()

    async def _perform(self, job: Job, order: Order, ticket: int) -> tuple[str, Parcel]:
        execution = await self.runtime.execute(job)
        executor = self._workshop.executor(
            self.runtime, self._register, order.step, evaluation=order.evaluation, bare=order.bare
        )
        entry = await executor.entry(order.source, execution, number=order.number)
        if order.keep and isinstance(entry.kept, Execution):
            self._kept[ticket] = entry.kept
        return execution.rollout_id, packed(entry)
