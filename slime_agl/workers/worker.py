"""One worker: a whole runtime in a process of its own, asked by a fleet."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from dataclasses import dataclass

from slime_agl.engine.base import EngineInfo, Pressure
from slime_agl.execution import Execution, Job
from slime_agl.runtime import Runtime
from slime_agl.workers.serving import hop


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a worker says of itself when it is ready. pid: on its own node."""

    pid: int
    engine_info: EngineInfo


class Worker:
    """Its methods may be called on any event loop; the runtime has its own. runtime: not started yet."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        runtime.start()

    async def hello(self) -> Hello:
        return Hello(pid=os.getpid(), engine_info=self.runtime.engine_info)

    async def ping(self) -> None:
        """Answer."""

    async def begin_step(self, step: int, temperature: float, top_p: float) -> None:
        await hop(self.runtime.submit, self.runtime.begin_step(step, temperature, top_p))

    async def execute(self, job: Job) -> Execution:
        """Execute a job; its task stays here, as the fleet has it."""
        execution = await hop(self.runtime.submit, self.runtime.execute(job))
        return dataclasses.replace(execution, task=None)

    async def park(self) -> None:
        await hop(self.runtime.submit, self.runtime.park())

    async def resume(self) -> None:
        await hop(self.runtime.submit, self.runtime.resume())

    async def abort(self, origin: str) -> None:
        """Abort the engine requests of another worker, which has died."""
        await hop(self.runtime.submit, self.runtime.abort(origin))

    async def quiet(self) -> None:
        await hop(self.runtime.submit, self.runtime.quiet())

    async def weight_version(self) -> str:
        return await hop(self.runtime.submit, self.runtime.weight_version())

    async def in_flight(self) -> int:
        return await hop(self.runtime.submit, self.runtime.in_flight())

    async def pressure(self) -> Pressure:
        return await hop(self.runtime.submit, self.runtime.pressure())

    async def metrics(self) -> dict[str, float]:
        return await hop(self.runtime.submit, self.runtime.metrics())

    async def stop(self) -> None:
        await asyncio.to_thread(self.runtime.stop)


def name_of(number: int) -> str:
    return f"worker-{number}"


def origin_of(name: str) -> str:
    """What leads the ids of a worker's engine requests; no worker's is the beginning of another's."""
    return f"{name}."
