"""One attempt, from the birth of its session to the status in the store."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Any, Protocol

from slime_agl.lightning._agl import AttemptedRollout
from slime_agl.lightning.clock import WorkingClock
from slime_agl.lightning.exits import mend_streams
from slime_agl.lightning.failures import agent_traceback
from slime_agl.lightning.outcome import CANCELLED, FAILED, SUCCEEDED, TIMEOUT, AttemptOutcome
from slime_agl.lightning.owner import Owner, current
from slime_agl.lightning.processes import Processes
from slime_agl.lightning.rewards import rewards_of
from slime_agl.lightning.slots import Slot
from slime_agl.lightning.spans import SpanBuffer
from slime_agl.lightning.store import ReleasingStore
from slime_agl.lightning.tracer import RoutingTracer
from slime_agl.lightning.view import StoreView

# How long a cancelled agent may take to clean up before it is left behind.
CANCEL_GRACE_SECONDS = 5.0


class AttemptPort(Protocol):
    """Where the model calls of one rollout's attempts arrive; one attempt at a time."""

    def began(self) -> None:
        """An attempt has its slot, and is opened next."""
        ...

    async def open(self, rollout_id: str, attempt_id: str) -> str:
        """Admit the attempt's calls from now on; returns the API key they must carry."""
        ...

    async def seal(self, rollout_id: str, attempt_id: str) -> Any:
        """Refuse the attempt's calls from now on; returns what it leaves. Called once, however the attempt ends."""
        ...

    def may_retry(self, sealed: Any, status: str) -> bool:
        """Whether another attempt may follow one that left `sealed` and ended as `status`, if its rollout has any left."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended. error, error_type: None exactly when it succeeded."""

    status: str
    error: str | None = None
    error_type: str | None = None

    @classmethod
    def by(cls, error: BaseException) -> Ended:
        return cls(FAILED, agent_traceback(error), type(error).__name__)


class AttemptRun:
    """Runs one attempt with Agent Lightning's own runner and owns its deadline.

    `clock` measures the deadline: it stands still while the attempt is parked. `stop` is a future of the caller: when it
    is done the attempt is cancelled. `owner` is whom all that runs for the attempt belongs to; a strike at it ends the
    attempt as failed. On a deadline, a stop or a strike the session is sealed first, so that a turn in flight is not
    answered to an agent that is going away. However the attempt ends, what it started in `processes` ends with it.

    left_behind: the agent's task, when it ignores its cancellation. leaked_tasks: how many tasks of its own the agent had
    left running, which were cancelled.
    """

    def __init__(
        self,
        attempted: AttemptedRollout,
        *,
        store: ReleasingStore,
        tracer: RoutingTracer,
        port: AttemptPort,
        timeout_seconds: float | None,
        clock: WorkingClock,
        stop: asyncio.Future[None],
        owner: Owner,
        processes: Processes | None,
        end_tasks: bool = True,
    ) -> None:
        self._attempted = attempted
        self._ids = (attempted.rollout_id, attempted.attempt.attempt_id)
        self._store = store
        self._tracer = tracer
        self._port = port
        self._timeout = timeout_seconds
        self._clock = clock
        self._stop = stop
        self._owner = owner
        self._processes, self._ends_tasks = processes, end_tasks
        self._sealed: Any = None
        self.left_behind: asyncio.Task[Ended] | None = None
        self.leaked_tasks = 0

    async def run(self, slot: Slot) -> AttemptOutcome:
        """Run to the end; the store knows the status and holds all spans when this returns.

        An agent's error is part of the outcome. What is raised is the port's or the store's own.
        """
        started = time.time()
        buffer = SpanBuffer(*self._ids, self._store, trace_id=secrets.token_hex(16))
        self._tracer.attach(buffer)
        try:
            await self._store.update_attempt(*self._ids, status="running")
            self._port.began()
            api_key = await self._port.open(*self._ids)
            view = StoreView(self._store, buffer, self._attempted, api_key=api_key)
            task = asyncio.create_task(self._step(slot, view), name=f"agent-{self._ids[0]}")
            ended = await self._supervise(task, slot)
        finally:
            self._owner.state = "left_behind" if self.left_behind is not None or slot.thread_left else "over"
            self._tracer.detach(buffer)
            spans = await buffer.close()
            if self._ends_tasks:
                await self._end_tasks()
            mend_streams()
        try:
            rewards = rewards_of(spans)
        except ValueError as error:
            # Rewards that cannot be read, or trained on, are the agent's failure, unless it has failed already.
            ended, rewards = Ended.by(error) if ended.status == SUCCEEDED else ended, ()
        await self._report(ended)
        return AttemptOutcome(
            rollout_id=self._ids[0],
            attempt_id=self._ids[1],
            status=ended.status,
            error=ended.error,
            error_type=ended.error_type,
            rewards=rewards,
            spans=spans,
            started=started,
            ended=time.time(),
            sealed=self._sealed,
        )

    async def _step(self, slot: Slot, view: StoreView) -> Ended:
        try:
            runner = slot.runner(view)
            # What making the agent starts is the slot's, what it starts from here on is this attempt's.
            current.set(self._owner)
            await runner.step(self._attempted.input, mode=self._attempted.mode)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # The edge of the agent: whatever it raises, SystemExit too, is how its attempt ended.
            return Ended.by(error)
        return Ended(SUCCEEDED)

    async def _supervise(self, task: asyncio.Task[Ended], slot: Slot) -> Ended:
        late = [] if self._timeout is None else [asyncio.ensure_future(self._clock.sleep(self._timeout))]
        struck = self._owner.struck
        try:
            await asyncio.wait([task, self._stop, struck, *late], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for deadline in late:
                deadline.cancel()
            ended = Ended(FAILED, *struck.result()) if struck.done() else _verdict(task) if task.done() else None
            struck.cancel()
            try:
                self._sealed = await self._port.seal(*self._ids)
            finally:
                task.cancel()
        await self._wind_up(task, slot)
        if ended is not None:
            return ended
        if self._stop.done():
            return Ended(CANCELLED, "the attempt was cancelled", "CancelledError")
        return Ended(TIMEOUT, f"the agent ran longer than its {self._timeout:g} s", "TimeoutError")

    async def _wind_up(self, task: asyncio.Task[Ended], slot: Slot) -> None:
        """Let a cancelled agent clean up, then end its processes, for one of which it may have waited."""
        if not task.done():
            await asyncio.wait({task}, timeout=CANCEL_GRACE_SECONDS)
        if self._processes is not None and await self._processes.end(self._owner):
            if not task.done():
                await asyncio.wait({task}, timeout=CANCEL_GRACE_SECONDS)
            await slot.thread_ended(CANCEL_GRACE_SECONDS)
        if not task.done():
            self.left_behind = task

    async def _end_tasks(self) -> None:
        """Cancel the tasks that the agent started and left; its spans are written by now, for one task may do that."""
        leaked = [task for task in self._owner.tasks if not task.done()]
        self.leaked_tasks = len(leaked)
        for task in leaked:
            task.cancel()
        if leaked:
            await asyncio.wait(leaked, timeout=CANCEL_GRACE_SECONDS)

    async def _report(self, ended: Ended) -> None:
        if ended.status == CANCELLED:
            await self._store.cancel_attempt(*self._ids)
            return
        status = ended.status
        if self._port.may_retry(self._sealed, status):
            # The store queues failed attempts again, and an agent can end well without what it was to do.
            status = TIMEOUT if status == TIMEOUT else FAILED
        elif status != SUCCEEDED:
            await self._store.forbid_retry(self._ids[0])
        metadata = {"error_type": ended.error_type, "error": ended.error} if ended.error else None
        await self._store.update_attempt(*self._ids, status=status, metadata=metadata)


def _verdict(task: asyncio.Task[Ended]) -> Ended:
    if task.cancelled():
        return Ended(FAILED, "the agent raised asyncio.CancelledError though nobody cancelled it", "CancelledError")
    return task.result()
