"""What runs executions, seen from whoever wants some: in this process, or on a fleet of workers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config
from slime_agl.engine.base import EngineInfo
from slime_agl.execution import Execution, Job

T = TypeVar("T")


class Closable(Protocol):
    async def close(self) -> None: ...


K = TypeVar("K", bound=Closable)


class Runtime(Protocol):
    """Runs agents. `start`, `stop`, `run` and `submit` may be called from any thread, the coroutines on its own loop."""

    @property
    def config(self) -> Config: ...

    @property
    def renderer(self) -> Renderer: ...

    @property
    def engine_info(self) -> EngineInfo:
        """What the engine said of itself at the start."""
        ...

    def start(self) -> None:
        """Start all parts. What started is stopped again when a later part fails."""
        ...

    def stop(self) -> None:
        """Stop everything; may be called again."""
        ...

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the runtime's loop and wait for it. An interrupt cancels it and waits for its cleanup."""
        ...

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the runtime's loop, for a caller who waits on another one (asyncio.wrap_future)."""
        ...

    def keep(self, kind: type[K], make: Callable[[], K]) -> K:
        """The one object of a kind that lives as long as the runtime: made when first asked for, closed before it stops."""
        ...

    async def begin_step(self, step: int, temperature: float, top_p: float) -> None:
        """Publish the resources of a step, with what the trainer samples with, and release what older steps left."""
        ...

    async def execute(self, job: Job) -> Execution:
        """Run the agent once (and again, as far as retries are configured) with the resources of the latest step.

        Cancelling it ends the agent; what it had sampled is counted as `aborted_tokens` in the metrics.

        Raises:
            InvariantError: a token invariant broke, also when it is cancelled. Everything else that goes wrong is in
                the Execution.
        """
        ...

    def finished(self, rollout_id: str) -> Execution | None:
        """An execution that finished in the last steps or is still held, by its Agent Lightning rollout id."""
        ...

    async def park(self) -> None:
        """Hold all training: turns wait at the gateway, deadlines stand still. Returns when its last request is off
        the engine. Agents live on, and what they do without the engine goes on.
        """
        ...

    async def resume(self) -> None:
        """End `park`: held turns go on from their partial output."""
        ...

    async def quiet(self) -> None:
        """End what the engine still holds for anybody, and wait until it is idle."""
        ...

    async def weight_version(self) -> str:
        """Version of the weights that the engine samples with now, '' when it does not say."""
        ...

    async def in_flight(self) -> int:
        """Requests of agents that are being served."""
        ...

    async def metrics(self) -> dict[str, float]:
        """Counts since the start."""
        ...
