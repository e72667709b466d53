"""The interface of what runs executions: this process, or a fleet of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config
from slime_agl.engine.base import EngineInfo, Pressure
from slime_agl.execution import Execution, Job
from slime_agl.loops import Work

T = TypeVar("T")


class Closable(Protocol):
    async def close(self) -> None: ...


K = TypeVar("K", bound=Closable)


class Kept:
    """An execution that stays where it ran, in another process, for as long as this lives.

    holder: of the execution; known to the runtime alone. ticket: the holder's number for it. result: what came of it.
    """

    __slots__ = ("__weakref__", "holder", "result", "ticket")

    def __init__(self, holder: Any, ticket: int, result: Any) -> None:
        self.holder, self.ticket, self.result = holder, ticket, result


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

    @property
    def most_bytes(self) -> int | None:
        """Bound on the data of finished groups that no batch has taken, None without one."""
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

    async def equip(self, arguments: Mapping[str, Any]) -> None:
        """Give slime's arguments to all processes that perform orders; no-op if they are as before."""
        ...

    async def perform(self, job: Job, order: Any) -> Kept | Execution:
        """Execute a job, and make of it what `order` says where it ran, if that is in another process.

        Returns an Execution if that is left to the caller. Raises: as `execute`, and what making it raised.
        """
        ...

    async def record(self, path: str, header: Any, found: Sequence[tuple[Kept, Any]]) -> list[int]:
        """Have each process write the executions that it keeps to a file of its own beside `path`.

        found: executions with what became of them. Returns the numbers of the workers that have such a file.
        """
        ...

    async def abort(self, origin: str) -> None:
        """Abort the engine requests of another process, which has ended. origin: see SessionSpec."""
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

    async def pressure(self) -> Pressure:
        """How the agents strain the engine; token counts are since the start."""
        ...

    async def in_flight(self) -> int:
        """Number of agents' requests being served."""
        ...

    async def metrics(self) -> dict[str, float]:
        """Counts since the start."""
        ...
