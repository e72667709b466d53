"""The runtime of one process: its gateway, store and runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config, HarnessConfig
from slime_agl.engine.base import EngineInfo, Pressure
from slime_agl.errors import SandboxExhausted
from slime_agl.execution import Execution, Job, Lane, failure_of, finish, refuse_broken, sampled_tokens
from slime_agl.gateway.door import mint_key
from slime_agl.gateway.http.server import Gateway
from slime_agl.gateway.refusal import CONTEXT_OVERFLOW
from slime_agl.gateway.sessions.session import SealedSession, SessionSpec
from slime_agl.loops import LoopThread, Work
from slime_agl.pace import Law, Pace, Rooms
from slime_agl.runtime import K, Kept
from slime_agl.runtime_loop import RuntimeLoop
from slime_agl.trace.segments import segments

if TYPE_CHECKING:  # importing Agent Lightning costs seconds
    from slime_agl.lightning.side import LightningSide

STEPS_HELD = 2

T = TypeVar("T")
TRAIN: Lane = "train"


@dataclass(slots=True)
class _Step:
    """A step: its resources, and what ended while it was the latest step."""

    number: int
    resources_id: str
    rollouts: list[str] = field(default_factory=list)
    finished: list[Execution] = field(default_factory=list)


class _SessionPort:
    """The port of one execution: opens a session at the gateway before each attempt's agent runs, and seals it after.

    sealed: the sessions of its attempts so far.
    """

    def __init__(self, gateway: Gateway, config: Config, job: Job, step: Callable[[], int], origin: str) -> None:
        self._gateway, self._config, self._job, self._step, self._origin = gateway, config, job, step, origin
        self.sealed: list[SealedSession] = []
        self._lost_sandboxes = 0
        self._key = ""

    @property
    def key(self) -> str:
        """The key of all attempts, minted on first use; without a use each attempt has its own."""
        self._key = self._key or mint_key()
        return self._key

    def began(self) -> None:
        if self._job.watcher is not None:
            self._job.watcher.begin(self._step())

    async def open(self, rollout_id: str, attempt_id: str) -> str:
        job, agent = self._job, self._config.agent
        return await self._gateway.open(
            SessionSpec(
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                session_key=job.session_key,
                sampling=job.sampling,
                response_limit=job.response_limit,
                context_limit=job.context_limit,
                experts_width=job.experts_width,
                lane=job.lane,
                origin=self._origin,
                events=isinstance(agent, HarnessConfig) and agent.reward == "agent",
                key=self._key,
            )
        )

    async def seal(self, rollout_id: str, attempt_id: str) -> SealedSession:
        self.sealed.append(await self._gateway.seal(rollout_id, attempt_id))
        return self.sealed[-1]

    def cut_by(self, sealed: SealedSession) -> str:
        """Return CONTEXT_OVERFLOW if the attempt ended after a prompt that exceeded the context, else ''."""
        last = len(sealed.ledger.turns) - 1
        return CONTEXT_OVERFLOW if last in sealed.ledger.full else ""

    def may_retry(self, sealed: SealedSession, status: str, error_type: str) -> bool:
        """Return True if the attempt failed in a way that `agl.failure` or `agl.sandbox` retries."""
        failure = failure_of(status, bool(segments(sealed.ledger)), sealed.engine_errors, error_type)
        if failure == "sandbox_error":
            self._lost_sandboxes += 1
            return error_type != SandboxExhausted.__name__ and self._lost_sandboxes <= self._config.sandbox.retries
        tries = len(self.sealed) - self._lost_sandboxes
        return self._config.failure.policy(failure) == "retry" and tries < self._config.failure.max_attempts


class InProcess:
    """A runtime (see `Runtime`) whose gateway, store and runners live in this process.

    origin: see SessionSpec. law: of the number of concurrent executions, None if it is fixed.
    """

    def __init__(
        self,
        *,
        config: Config,
        renderer: Renderer,
        gateway: Gateway,
        lightning: LightningSide,
        origin: str = "",
        law: Law | None = None,
    ) -> None:
        self.config, self.renderer, self._origin = config, renderer, origin
        self.most_bytes = None
        self._gateway, self._lightning = gateway, lightning
        self._home = RuntimeLoop()
        self._steps: list[_Step] = []
        # Steps keep their executions alive; a caller may keep one longer.
        self._finished: WeakValueDictionary[str, Execution] = WeakValueDictionary()
        self._aborted_tokens = 0
        self._rooms = Rooms(None if law is None else law.limit)
        self._pace = Pace(law, read=self.pressure, demand=self._rooms.demand, apply=self._rooms.resize)

    def start(self) -> None:
        """Start gateway, store and runners; if one fails, stop those that started."""
        # Created here, so that a runtime that is only inspected leaves no open loop behind.
        thread = LoopThread("agl-runtime", self._lightning.new_loop(), exited=self._lightning.exited)
        self._home.start(thread)
        try:
            self._gateway.start()
            self.run(self._lightning.start(hopeless=thread.give_up))
        except BaseException:
            self.stop()
            raise
        self._home.settle()

    def stop(self) -> None:
        """Stop everything. Idempotent."""
        if not self._home.running:
            return
        try:
            self._home.close(self._close)
        finally:
            self._gateway.stop()
            self._home.end()

    def run(self, coroutine: Work[T]) -> T:
        return self._home.run(coroutine)

    def submit(self, coroutine: Work[T]) -> Future[T]:
        return self._home.submit(coroutine)

    def keep(self, kind: type[K], make: Callable[[], K]) -> K:
        return self._home.keep(kind, make)

    async def begin_step(self, step: int, temperature: float, top_p: float) -> None:
        self._collect_ended()
        while len(self._steps) >= STEPS_HELD:
            await self._release(self._steps.pop(0))
        resources_id = await self._lightning.publish(
            step,
            endpoint=f"{self._gateway.url}/v1",
            model=self.config.model,
            sampling_parameters={"temperature": temperature, "top_p": top_p},
        )
        self._steps.append(_Step(step, resources_id))
        self._pace.go_on()

    async def execute(self, job: Job) -> Execution:
        async with self._rooms.place(job.lane):
            return await self._execute(job)

    async def _execute(self, job: Job) -> Execution:
        port = _SessionPort(self._gateway, self.config, job, lambda: self._steps[-1].number, self._origin)
        try:
            outcome = await self._lightning.run(
                job.task,
                lane=job.lane,
                resources_id=self._steps[-1].resources_id,
                port=port,
                max_attempts=job.max_attempts,
            )
        except BaseException:
            self._aborted_tokens += sum(sampled_tokens(session.ledger) for session in port.sealed)
            refuse_broken(port.sealed)
            raise
        execution = finish(job, outcome)
        self._finished[outcome.rollout_id] = execution
        self._steps[-1].finished.append(execution)
        return execution

    async def equip(self, arguments: Mapping[str, Any]) -> None:
        """No-op: whoever equips is in this process."""

    async def perform(self, job: Job, order: Any) -> Execution:
        """`execute`: orders are carried out by the caller."""
        return await self.execute(job)

    async def record(self, path: str, header: Any, found: Sequence[tuple[Kept, Any]]) -> list[int]:
        """No-op: the caller has the executions."""
        return []

    def last_finished(self) -> list[Execution]:
        """Executions that ended during the latest step; empty before the first."""
        return list(self._steps[-1].finished) if self._steps else []

    async def finished(self, rollout_id: str) -> Execution | None:
        """Find an execution of the last steps, or one that a caller keeps alive, by its Agent Lightning rollout id."""
        return self._finished.get(rollout_id)

    @property
    def engine_info(self) -> EngineInfo:
        """The engine's description of itself, read at the start."""
        return self._gateway.engine_info

    async def park(self) -> None:
        """Pause training: turns wait at the gateway and deadlines stop. Returns when no training request is at the
        engine. Agents stay alive, and continue whatever does not need the engine.
        """
        self._pace.stay()
        await self._lightning.pause(TRAIN)
        await self._gateway.park(TRAIN)

    async def resume(self) -> None:
        """End `park`: interrupted turns resume from their partial output."""
        await self._gateway.resume(TRAIN)
        await self._lightning.resume(TRAIN)
        self._pace.go_on()

    async def abort(self, origin: str) -> None:
        """Abort the engine requests of another process, which has ended."""
        await self._gateway.abort(origin)

    async def quiet(self) -> None:
        """Abort every request at the engine and wait until it is idle."""
        await self._gateway.quiet()

    async def weight_version(self) -> str:
        """Version of the weights that the engine samples with now, '' if unreported."""
        return await self._gateway.weight_version()

    async def in_flight(self) -> int:
        return await self._gateway.in_flight()

    async def metrics(self) -> dict[str, float]:
        """Counts since the start: the gateway's, Agent Lightning's, and the sampled tokens of cancelled executions."""
        counts = {**await self._gateway.counters(), **await self._lightning.metrics()}
        return {**counts, **self._pace.metrics(), "aborted_tokens": self._aborted_tokens}

    async def pressure(self) -> Pressure:
        """How the agents of this process strain the engine; its token counts are since the start."""
        return await self._gateway.pressure()

    async def _close(self) -> None:
        await self._pace.close()
        await self._lightning.close()

    def _collect_ended(self) -> None:
        """Assign the rollouts that have ended since the last step began to that step."""
        if self._steps:
            self._steps[-1].rollouts += self._lightning.take_ended()

    async def _release(self, step: _Step) -> None:
        step.finished.clear()
        await self._lightning.release(step.rollouts)
