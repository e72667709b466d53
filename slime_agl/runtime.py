"""Parts in, finished executions out: the gateway, the store and the runners as one thing that runs agents."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakValueDictionary

from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config
from slime_agl.engine.base import EngineInfo
from slime_agl.errors import SlimeAglError
from slime_agl.execution import Execution, Job, SessionDesk, finish, refuse_broken
from slime_agl.gateway import garbage
from slime_agl.gateway.http.server import Gateway
from slime_agl.host import EvalPrompts
from slime_agl.lightning.service import Lightning
from slime_agl.loops import LoopThread
from slime_agl.outstanding import Outstanding

logger = logging.getLogger(__name__)

STEPS_HELD = 2
INTERRUPT_SECONDS = 30.0
STOP_SECONDS = 120.0

T = TypeVar("T")
TRAIN: Literal["train"] = "train"
CONTAINED = (
    "late_requests", "dropped_calls", "abandoned_threads", "abandoned_tasks", "leaked_tasks", "mixed_calls", "exits_caught",
    "blocked_loops", "blocked_seconds", "ended_processes", "left_processes",
)  # fmt: skip


@dataclass(slots=True)
class Step:
    """A step: its resources, and what ended while it was the latest one."""

    number: int
    resources_id: str
    rollouts: list[str] = field(default_factory=list)
    finished: list[Execution] = field(default_factory=list)


class Closable(Protocol):
    async def close(self) -> None: ...


K = TypeVar("K", bound=Closable)


class Runtime:
    """Runs agents. `start`, `stop` and `run` may be called from any thread, the coroutines on its own loop."""

    def __init__(
        self, config: Config, gateway: Gateway, lightning: Lightning, desk: SessionDesk, renderer: Renderer,
        eval_prompts: EvalPrompts,
    ) -> None:  # fmt: skip
        self.config, self.renderer, self.eval_prompts = config, renderer, eval_prompts
        self._gateway, self._lightning, self._desk = gateway, lightning, desk
        self._loop = LoopThread("agl-runtime", lightning.new_loop(), exited=lightning.exited)
        self._steps: list[Step] = []
        # An execution is held by the steps, and beyond them by whoever still needs it.
        self._finished: WeakValueDictionary[str, Execution] = WeakValueDictionary()
        self._kept: dict[type[Closable], Closable] = {}
        self._numbers = itertools.count(1 << 40)
        self._running = False
        self._collector: tuple[int, int, int] | None = None
        self._said: set[str] = set()
        self._contained: Counter[str] = Counter()
        self.outstanding = Outstanding()
        self.aborted_tokens = 0

    def start(self) -> None:
        """Start gateway, store and runners. What started is stopped again when a later part fails."""
        self._loop.start()
        self._running = True
        try:
            self._gateway.start()
            self.run(self._lightning.start(self._desk, hopeless=self._loop.give_up))
        except BaseException:
            self.stop()
            raise
        self._collector = garbage.relax()

    def stop(self) -> None:
        """Stop everything; may be called again."""
        if not self._running:
            return
        self._running = False
        try:
            self._wait(self._close(), STOP_SECONDS)
        except TimeoutError:
            logger.error("the agents have not ended within %g s; what blocks them is left behind", STOP_SECONDS)
        except SlimeAglError as error:
            logger.error("the agents cannot be ended: %s", error)
        finally:
            if self._collector is not None:
                garbage.restore(self._collector)
            self._gateway.stop()
            self._loop.stop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the runtime's loop and wait for it. An interrupt cancels it and waits for its cleanup."""
        if not self._running:
            coroutine.close()
            raise SlimeAglError("the runtime is stopped")
        return self._wait(coroutine)

    async def _close(self) -> None:
        for kept in self._kept.values():
            await kept.close()
        await self._lightning.close()

    def keep(self, kind: type[K], make: Callable[[], K]) -> K:
        """The one object of a kind that lives as long as the runtime: made when first asked for, closed before it stops."""
        if kind not in self._kept:
            self._kept[kind] = make()
        return self._kept[kind]  # type: ignore[return-value]

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the runtime's loop, for a caller who waits on another one (asyncio.wrap_future)."""
        return self._loop.submit(coroutine)

    def warn_once(self, message: str, *, topic: str = "") -> None:
        """Log a warning, once in this runtime's life; `topic` names it when its words vary."""
        if (topic or message) not in self._said:
            self._said.add(topic or message)
            logger.warning(message)

    def next_number(self) -> int:
        """A number for an execution whose Sample has no index."""
        return next(self._numbers)

    async def begin_step(self, step: int, temperature: float, top_p: float) -> Step:
        """Publish the resources of a step, with what the trainer samples with, and release what older steps left."""
        while len(self._steps) >= STEPS_HELD:
            await self._release(self._steps.pop(0))
        resources_id = await self._lightning.publish(
            step,
            endpoint=f"{self._gateway.url}/v1",
            model=self.config.model,
            sampling_parameters={"temperature": temperature, "top_p": top_p},
        )
        self._steps.append(Step(step, resources_id))
        return self._steps[-1]

    @property
    def latest_step(self) -> Step:
        """The step that began last; IndexError before the first."""
        return self._steps[-1]

    async def execute(self, job: Job, step: Step) -> Execution:
        """Run the agent once (and again, as far as retries are configured).

        Cancelling it ends the agent; what it had sampled is counted in `aborted_tokens`.

        Raises:
            InvariantError: a token invariant broke. Everything else that goes wrong is in the Execution.
        """
        ids: list[str] = []

        def enqueued(rollout_id: str) -> None:
            ids.append(rollout_id)
            self._desk.expect(rollout_id, job)

        try:
            outcome = await self._lightning.run(
                job.task, mode=job.mode, resources_id=step.resources_id, enqueued=enqueued
            )
        except BaseException:
            sealed = [session for rollout_id in ids for session in self._desk.take(rollout_id)]
            self.aborted_tokens += sum(turn.output_length for session in sealed for turn in session.ledger.turns)
            refuse_broken(sealed)
            raise
        finally:
            self._steps[-1].rollouts += ids
        execution = finish(job, outcome, self._desk.take(outcome.rollout_id))
        self._finished[outcome.rollout_id] = execution
        self._steps[-1].finished.append(execution)
        return execution

    def finished(self, rollout_id: str) -> Execution | None:
        """An execution that finished in the last steps or is still held, by its Agent Lightning rollout id."""
        return self._finished.get(rollout_id)

    @property
    def engine_info(self) -> EngineInfo:
        """What the engine said of itself at the start."""
        return self._gateway.engine_info

    async def park(self) -> None:
        """Hold all training: turns wait at the gateway, deadlines stand still. Returns when its last request is off
        the engine. Agents live on, and what they do without the engine goes on.
        """
        self._lightning.pause(TRAIN)
        await self._gateway.hold(TRAIN)

    async def resume(self) -> None:
        """End `park`: held turns go on from their partial output."""
        await self._gateway.release(TRAIN)
        self._lightning.resume(TRAIN)

    async def quiet(self) -> None:
        """End what the engine still holds for anybody, and wait until it is idle."""
        await self._gateway.quiet()

    async def weight_version(self) -> str:
        """Version of the weights that the engine samples with now, '' when it does not say."""
        return await self._gateway.weight_version()

    def take_aborted_tokens(self) -> int:
        """Tokens sampled by executions that were cancelled since the last call."""
        tokens, self.aborted_tokens = self.aborted_tokens, 0
        return tokens

    async def contained(self) -> dict[str, int]:
        """What agents that outlive their end have caused since the last call: late requests, tasks and threads left."""
        counts = await self.metrics()
        now = Counter({name: int(counts.get(name, 0)) for name in CONTAINED})
        new, self._contained = now - self._contained, now
        return dict(new)

    async def in_flight(self) -> int:
        return await self._gateway.in_flight()

    async def metrics(self) -> dict[str, float]:
        """Counts since the start, of gateway and Agent Lightning."""
        return {**await self._gateway.counters(), **await self._lightning.metrics()}

    async def _release(self, step: Step) -> None:
        step.finished.clear()
        await self._lightning.release(step.rollouts)

    def _wait(self, coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        done = threading.Event()
        future = self._loop.submit(_announced(coroutine, done))
        try:
            return future.result(seconds)
        except KeyboardInterrupt:
            future.cancel()
            done.wait(INTERRUPT_SECONDS)
            raise


async def _announced(coroutine: Coroutine[Any, Any, T], done: threading.Event) -> T:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        # It would end the process of the trainer without a word.
        raise SlimeAglError(
            f"{type(error).__name__} was raised by code that runs for a step, outside any agent"
        ) from error
    finally:
        done.set()
