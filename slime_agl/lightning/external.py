"""Agent Lightning with a store and runners of its own: executions are enqueued, other processes run the agent."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.lightning._agl import (
    LLM,
    LightningStore,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
)
from slime_agl.lightning.clock import WorkingClock
from slime_agl.lightning.failures import FailureLog
from slime_agl.lightning.open_rollouts import Admission, OpenRollout
from slime_agl.lightning.outcome import STATUSES, Lane, RolloutOutcome
from slime_agl.lightning.side import Port
from slime_agl.lightning.stores import ExternalStore
from slime_agl.lightning.turn_spans import TurnSink
from slime_agl.lightning.waiting import Watch
from slime_agl.loops import Work, to_its_end

T = TypeVar("T")
ENQUEUED_AT_ONCE = 32

logger = logging.getLogger(__name__)


class ExternalLightning:
    """See `side.Lightning`. The runners of `store`, processes that others start, run the agent.

    timeout_seconds: deadline of an attempt, kept by the store. retried: statuses of an attempt after which the store
    runs it again, at most `max_attempts` times. lost_seconds: see `agl.runners.lost_seconds`.
    initial: id of resources in the store that agents get, too. The rest is as in `service.Lightning`.
    """

    def __init__(
        self,
        store: ExternalStore,
        *,
        timeout_seconds: float | None,
        lost_seconds: float,
        max_attempts: int,
        retried: Iterable[str],
        tokens: bool,
        templates: Mapping[str, str],
        frozen: Mapping[str, str],
        resource_name: str,
        initial: str | None,
    ) -> None:
        self._external, self._timeout = store, timeout_seconds
        self._max_attempts, self._retried = max_attempts, ["unresponsive", *retried]
        self._resource_name, self._initial = resource_name, initial
        self._others: NamedResources = {
            **{name: LLM(endpoint=url, model=name, api_key="none") for name, url in frozen.items()},
            **{name: PromptTemplate(template=text, engine="f-string") for name, text in templates.items()},
        }
        self.sink = TurnSink(tokens=tokens)
        self.doorman = _Doorman(self)
        self._watch = Watch(store, lost_seconds)
        self._run = f"slime_agl-{secrets.token_hex(4)}"
        self._published: dict[str, tuple[int, NamedResources]] = {}
        self._open: dict[str, OpenRollout] = {}
        self._free: list[str] = []
        self._slots = 0
        self._enqueuing: set[asyncio.Future[OpenRollout]] = set()
        self._gate: asyncio.Semaphore | None = None
        self._clocks: dict[Lane, WorkingClock] = {}
        self._paused_at: dict[Lane, float] = {}
        self._ended: list[str] = []
        self._failures = FailureLog()
        self._attempts: Counter[str] = Counter()
        self._spans = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def exited(self, error: BaseException) -> None:
        logger.error("%s was raised on the event loop of the store, which goes on", type(error).__name__)

    async def start(self, *, hopeless: Callable[[str], None] = lambda reason: None) -> None:
        """Connect to the store, or serve it.

        Raises:
            ConfigError: no store answers; its address cannot be bound; it has no resources of the id `initial`.
        """
        self._gate = asyncio.Semaphore(ENQUEUED_AT_ONCE)
        await self._external.open()
        if self._initial is not None:
            found = await self._store.get_resources_by_id(self._initial)
            if found is None:
                raise ConfigError(
                    f"agl.store.resources is {self._initial!r}, which {self._external.where} does not have"
                )
            taken = sorted({self._resource_name, *self._others} & set(found.resources))
            if taken:
                raise ConfigError(
                    f"the resources {self._initial!r} of {self._external.where} contain {taken[0]!r}, which names a "
                    "model or template of this run, too; rename one of them (agl.resource_name, agl.templates)"
                )
            self._others.update(found.resources)
        self._clocks = {"train": WorkingClock(), "val": WorkingClock()}
        self._loop = asyncio.get_running_loop()
        self.sink.start()
        self._watch.start()

    @property
    def _store(self) -> LightningStore:
        return self._external.store

    async def pause(self, lane: Lane) -> None:
        """Stop the deadlines of a lane. Its runners may take queued rollouts; their turns wait at the gateway."""
        if lane not in self._paused_at:
            self._paused_at[lane] = asyncio.get_running_loop().time()
            self._watch.pause(lane)
            await self._move_deadlines(lane, paused=True)

    async def resume(self, lane: Lane) -> None:
        """End a pause."""
        began = self._paused_at.pop(lane, None)
        if began is None:
            return
        self._watch.resume(lane)
        for rollout in self._open.values():
            if rollout.lane == lane:
                rollout.parked_seconds += asyncio.get_running_loop().time() - began
        await self._move_deadlines(lane, paused=False)

    async def close(self) -> None:
        if self._loop is None:
            await self._external.close()
            return
        await self._watch.stop()
        await asyncio.gather(*(self._give_up(rollout) for rollout in list(self._open.values())))
        await self._external.close()
        self._loop = None

    async def publish(self, step: int, *, endpoint: str, model: str, sampling_parameters: Mapping[str, object]) -> str:
        """Publish the resources of a step. Each rollout gets a copy with a key of its own."""
        resources_id = f"{self._run}-step-{step}"
        main = ProxyLLM(endpoint=endpoint, model=model, sampling_parameters=dict(sampling_parameters))
        # The model being trained comes first: functional agents take the first LLM they see.
        resources: NamedResources = {self._resource_name: main, **self._others}
        await self._store.update_resources(resources_id, resources)
        for old, (number, _) in list(self._published.items()):
            if number < step - 1:
                del self._published[old]
        self._published[resources_id] = (step, resources)
        return resources_id

    async def run(
        self, task: object, *, lane: Lane, resources_id: str, port: Port, max_attempts: int | None = None
    ) -> RolloutOutcome:
        """Run one rollout in whatever runner takes it.

        Raises:
            ConfigError: the task cannot be sent as JSON.
            SlimeAglError: the resources are not published, or the store has lost the rollout.
        """
        if resources_id not in self._published:
            raise SlimeAglError(f"resources {resources_id} are not published; run with the id that publish returned")
        slot = self._free.pop() if self._free else self._new_slot()
        rollout: OpenRollout | None = None
        try:
            rollout = await self._enqueued(task, lane, resources_id, slot, port, max_attempts)
            return await asyncio.shield(rollout.done)
        except asyncio.CancelledError:
            if rollout is not None:
                await to_its_end(self._give_up(rollout))
            raise
        finally:
            self._free.append(slot)
            if rollout is not None:
                self._leave(rollout)

    def take_ended(self) -> list[str]:
        ended, self._ended = self._ended, []
        return ended

    async def release(self, rollout_ids: Iterable[str]) -> None:
        await self._external.forget(rollout_ids)

    async def metrics(self) -> dict[str, float]:
        try:
            store: Mapping[str, Any] = {**await self._store.statistics()}
        except Exception:  # the store's client raises whatever its HTTP library raises; a metric is no reason to stop
            store = {}
        return {
            **{f"attempts/{status}": float(self._attempts[status]) for status in STATUSES},
            "spans": float(self._spans),
            "spans_dropped": float(self.sink.dropped),
            "lost_attempts": float(self._watch.lost),
            "runners": float(self._watch.runners),
            "store/looks": float(self._watch.looks),
            "store/look_seconds": self._watch.look_seconds,
            **{
                f"store/{name.removeprefix('total_')}": float(store.get(name) or 0)
                for name in ("total_rollouts", "total_spans", "total_span_bytes")
            },
        }

    async def admit(self, rollout_id: str, attempt_id: str, may_enter: Callable[[str], bool]) -> Admission:
        """See the gateway's Doorman; on this loop."""
        if rollout_id not in self._open and self._enqueuing:
            # Its runner may be faster than the answer that tells its id.
            await asyncio.wait(set(self._enqueuing))
        rollout = self._open.get(rollout_id)
        return "unknown" if rollout is None else await rollout.admit(attempt_id, may_enter)

    async def number(self, rollout_id: str, attempt_id: str, turns: int) -> None:
        rollout = self._open.get(rollout_id)
        attempt = None if rollout is None else rollout.attempt(attempt_id)
        if attempt is not None:
            await attempt.spans.number(turns)

    def left(self, rollout_id: str, attempt_id: str) -> None:
        rollout = self._open.get(rollout_id)
        attempt = None if rollout is None else rollout.attempt(attempt_id)
        if attempt is not None:
            attempt.spans.left()
            self._watch.hint()

    async def _enqueued(
        self, task: object, lane: Lane, resources_id: str, slot: str, port: Port, max_attempts: int | None
    ) -> OpenRollout:
        """Enqueue a rollout. Cancelling does not interrupt it, so that no rollout is left in the queue unknown."""
        tries = min(self._max_attempts, max_attempts or self._max_attempts)
        config = RolloutConfig(
            max_attempts=tries,
            retry_condition=self._retried,  # type: ignore[arg-type]
            timeout_seconds=None if lane in self._paused_at else self._timeout,
        )
        step, resources = self._published[resources_id]
        own: NamedResources = {name: _keyed(resource, port.key) for name, resource in resources.items()}

        async def enqueue() -> OpenRollout:
            assert self._gate is not None
            async with self._gate:
                update: ResourcesUpdate = await self._store.update_resources(slot, own)
                queued: Rollout = await self._store.enqueue_rollout(
                    task,
                    mode=lane,
                    resources_id=update.resources_id,
                    config=config,
                    metadata={"slime_agl.step": step, "slime_agl.resources": resources_id},
                )
            rollout = OpenRollout(
                queued.rollout_id, lane=lane, port=port, max_attempts=tries, store=self._store, sink=self.sink
            )
            self._open[rollout.rollout_id] = rollout
            self._watch.add(rollout)
            return rollout

        enqueuing = asyncio.ensure_future(enqueue())
        self._enqueuing.add(enqueuing)
        enqueuing.add_done_callback(self._enqueuing.discard)
        try:
            return await asyncio.shield(enqueuing)
        except asyncio.CancelledError:
            with suppress(Exception):
                await to_its_end(self._withdraw(enqueuing))
            raise
        except TypeError as error:
            raise ConfigError(
                f"a task cannot be sent to the store of agl.store: {error}; tasks of external runners hold what JSON "
                "holds (agl.task, and the metadata of the rows)"
            ) from error

    async def _withdraw(self, enqueuing: asyncio.Future[OpenRollout]) -> None:
        rollout = await enqueuing
        await self._give_up(rollout)
        self._leave(rollout)

    async def _give_up(self, rollout: OpenRollout) -> None:
        """Seal a rollout's session, and cancel it in the store. A late report of its runner changes nothing here."""
        if rollout.done.done():
            return
        self._watch.remove(rollout)
        await rollout.seal()
        self._attempts["cancelled"] += 1
        try:
            await self._store.update_rollout(rollout.rollout_id, status="cancelled")
        except Exception as error:  # the session is sealed: whatever the runner does is not recorded
            logger.warning("rollout %s cannot be cancelled in the store: %s", rollout.rollout_id, error)
        if not rollout.done.done():
            rollout.done.set_exception(SlimeAglError(f"rollout {rollout.rollout_id} was given up"))

    def _leave(self, rollout: OpenRollout) -> None:
        self._watch.remove(rollout)
        self._open.pop(rollout.rollout_id, None)
        rollout.forget()
        self._ended.append(rollout.rollout_id)
        if not rollout.done.done() or rollout.done.exception() is not None:
            return
        for outcome in rollout.done.result().attempts:
            self._attempts[outcome.status] += 1
            self._spans += len(outcome.spans)
            self._failures.note(outcome)

    def _new_slot(self) -> str:
        """Name a snapshot of resources. Its interface has no removal, so the next rollout of a slot overwrites it."""
        self._slots += 1
        return f"{self._run}-{self._slots}"

    async def _move_deadlines(self, lane: Lane, *, paused: bool) -> None:
        """Suspend the store's deadlines of open rollouts, or set them anew, later by what they were parked."""
        if self._timeout is None:
            return
        timeout = self._timeout

        async def move(rollout: OpenRollout) -> None:
            config = RolloutConfig(
                max_attempts=rollout.max_attempts,
                retry_condition=self._retried,  # type: ignore[arg-type]
                timeout_seconds=None if paused else timeout + rollout.parked_seconds,
            )
            assert self._gate is not None
            try:
                async with self._gate:
                    await self._store.update_rollout(rollout.rollout_id, config=config)
            except Exception as error:  # the store's client raises whatever its HTTP library raises
                logger.warning("the deadline of rollout %s cannot be moved: %s", rollout.rollout_id, error)

        await asyncio.gather(*(move(rollout) for rollout in list(self._open.values()) if rollout.lane == lane))

    def call(self, work: Work[T]) -> asyncio.Future[T]:
        """Run work on this side's loop, for a caller on another one."""
        if self._loop is None:
            work.close()
            raise SlimeAglError("the store of external runners is closed")
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def call_soon(self, function: Callable[[str, str], None], rollout_id: str, attempt_id: str) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function, rollout_id, attempt_id)


class _Doorman:
    """The gateway's Doorman, which lives on the gateway's event loop."""

    def __init__(self, side: ExternalLightning) -> None:
        self._side = side

    async def admit(self, rollout_id: str, attempt_id: str, may_enter: Callable[[str], bool]) -> Admission:
        return await self._side.call(self._side.admit(rollout_id, attempt_id, may_enter))

    async def number(self, rollout_id: str, attempt_id: str, turns: int) -> None:
        with suppress(SlimeAglError):
            await self._side.call(self._side.number(rollout_id, attempt_id, turns))

    def left(self, rollout_id: str, attempt_id: str) -> None:
        self._side.call_soon(self._side.left, rollout_id, attempt_id)


def _keyed(resource: Any, key: str) -> Any:
    """A copy of a resource, with this key if it is the model being trained."""
    return resource.model_copy(update={"api_key": key} if isinstance(resource, ProxyLLM) else {})
