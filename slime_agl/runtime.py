"""The interface of what runs executions: this process, or a fleet of workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config
from slime_agl.engine.base import EngineInfo
from slime_agl.execution import Execution, Job
from slime_agl.loops import Work

T = TypeVar("T")


class Closable(Protocol):
    async def close(self) -> None: ...


K = TypeVar("K", bound=Closable)


class Runtime(Protocol):
    """Runs agents. `start`, `stop`, `run` and `submit` are thread-safe; the coroutines belong on its own loop."""

    @property
    def config(self) -> Config: ...

    @property
    def renderer(self) -> Renderer: ...

    @property
    def engine_info(self) -> EngineInfo:
        """The engine's description of itself, read at the start."""
        ...

    def start(self) -> None:
        """Start all parts; if one fails, stop those that started."""
        ...

    def stop(self) -> None:
        """Stop everything. Idempotent."""
        ...

    def run(self, coroutine: Work[T]) -> T:
        """Run a coroutine on the runtime's loop and wait for it. An interrupt cancels it and waits for its cleanup."""
        ...

    def submit(self, coroutine: Work[T]) -> Future[T]:
        """Start a coroutine on the runtime's loop, for a caller on another loop (asyncio.wrap_future)."""
        ...

    def keep(self, kind: type[K], make: Callable[[], K]) -> K:
        """Return the runtime's one object of a kind, made on first use and closed before the runtime stops."""
        ...

    async def begin_step(self, step: int, temperature: float, top_p: float) -> None:
        """Publish the resources of a step with the trainer's sampling parameters; release what older steps left."""
        ...

    async def execute(self, job: Job) -> Execution:
        """Run the agent, retrying as configured, with the resources of the latest step.

        Cancelling ends the agent; the tokens it had sampled count as `aborted_tokens` in the metrics.

        Raises:
            InvariantError: a token invariant broke, even if cancelled. Every other failure is in the Execution.
        """
        ...

    async def finished(self, rollout_id: str) -> Execution | None:
        """Find an execution of the last steps, or one that a caller keeps alive, by its Agent Lightning rollout id."""
        ...

    async def park(self) -> None:
        """Pause training: turns wait at the gateway and deadlines stop. Returns when no training request is at the
        engine. Agents stay alive, and continue whatever does not need the engine.
        """
        ...

    async def resume(self) -> None:
        """End `park`: interrupted turns resume from their partial output."""
        ...

    async def quiet(self) -> None:
        """Abort every request at the engine and wait until it is idle."""
        ...

    async def weight_version(self) -> str:
        """Version of the weights that the engine samples with now, '' if unreported."""
        ...

    async def in_flight(self) -> int:
        """Number of agents' requests being served."""
        ...

    async def metrics(self) -> dict[str, float]:
        """Counts since the start."""
        ...
