"""One attempt, from opening its session to its status in the store."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

from slime_agl.lightning._agl import AttemptedRollout
from slime_agl.lightning.clock import WorkingClock
from slime_agl.lightning.exits import mend_streams
from slime_agl.lightning.failures import agent_traceback, refusal_code
from slime_agl.lightning.outcome import CANCELLED, FAILED, SUCCEEDED, TIMEOUT, AttemptOutcome, Status
from slime_agl.lightning.owner import Owner, current
from slime_agl.lightning.processes import Processes
from slime_agl.lightning.rewards import rewards_of
from slime_agl.lightning.slots import Slot
from slime_agl.lightning.spans import RunningSpans, SpanBuffer
from slime_agl.lightning.store import ReleasingStore
from slime_agl.lightning.view import StoreView

# Time for a cancelled agent to clean up before it is left behind.
CANCEL_GRACE_SECONDS = 5.0


class AttemptPort(Protocol):
    """Opens and seals the sessions of one rollout's attempts, one attempt at a time."""

    def began(self) -> None:
        """An attempt has its slot and is opened next."""
        ...

    async def open(self, rollout_id: str, attempt_id: str) -> str:
        """Accept the attempt's calls from now on; returns the API key that they must carry."""
        ...

    async def seal(self, rollout_id: str, attempt_id: str) -> Any:
        """Refuse the attempt's calls from now on; returns its sealed session. Called once, however the attempt ends."""
        ...

    def may_retry(self, sealed: Any, status: str, error_type: str) -> bool:
        """Return True if another attempt may follow this one, provided that its rollout has any left.

        error_type: class name of the agent's error, '' without one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended. error, error_type: None exactly when it succeeded. error_code: see `refusal_code`."""

    status: Status
    error: str | None = None
    error_type: str | None = None
    error_code: str = ""

    @classmethod
    def by(cls, error: BaseException) -> Ended:
        return cls(FAILED, agent_traceback(error), type(error).__name__, refusal_code(error))


class RunningAttempt:
    """Runs one attempt with Agent Lightning's own runner and enforces its deadline.

    `clock` measures the deadline and stops while the attempt is parked. `stop` is the caller's future; completing it
    cancels the attempt. `owner` identifies everything that runs for the attempt; striking it fails the attempt. On a
    deadline, stop or strike the session is sealed first, so that a turn in flight is not answered to an agent that is
    ending. However the attempt ends, `processes` ends the processes that it started.

    left_behind: the agent's task, if it ignores its cancellation. leaked_tasks: number of tasks that the agent left
    running, and that were cancelled.
    """

    def __init__(
        self,
        attempted: AttemptedRollout,
        *,
        store: ReleasingStore,
        spans: RunningSpans,
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
        self._running_spans = spans
        self._port = port
        self._timeout = timeout_seconds
        self._clock = clock
        self._stop = stop
        self._owner = owner
        self._processes, self._ends_tasks = processes, end_tasks
        self._sealing: asyncio.Future[Any] | None = None
        self._sealed = None
        owner.seal, owner.clock = self.seal, clock
        self.left_behind: asyncio.Task[Ended] | None = None
        self.leaked_tasks = 0

    async def run(self, slot: Slot) -> AttemptOutcome:
        """Run to the end; on return the store has the status and all spans.

        An agent's error is part of the outcome. Only errors of the port or the store are raised.
        """
        started = time.time()
        buffer = SpanBuffer(*self._ids, self._store, trace_id=secrets.token_hex(16))
        self._running_spans.attach(buffer)
        try:
            self._store.run(*self._ids)
            self._port.began()
            api_key = await self._port.open(*self._ids)
            view = StoreView(self._store, buffer, self._attempted, api_key=api_key)
            task = asyncio.create_task(self._run_agent(slot, view), name=f"agent-{self._ids[0]}")
            ended = await self._supervise(task, slot)
        finally:
            self._owner.state = "left_behind" if self.left_behind is not None or slot.thread_left else "over"
            self._running_spans.detach(buffer)
            spans = await buffer.close()
            if self._ends_tasks:
                await self._end_tasks()
            mend_streams()
        try:
            rewards = rewards_of(spans)
        except ValueError as error:
            # An unreadable or non-finite reward is the agent's failure, unless it has failed already.
            ended, rewards = Ended.by(error) if ended.status == SUCCEEDED else ended, ()
        await self._report(ended)
        counts = Counter(self._owner.counts)
        return AttemptOutcome(
            rollout_id=self._ids[0],
            attempt_id=self._ids[1],
            status=ended.status,
            error=ended.error,
            error_type=ended.error_type,
            error_code=ended.error_code,
            rewards=rewards,
            spans=spans,
            started=started,
            ended=time.time(),
            sealed=self._sealed,
            counts=counts,
        )

    async def seal(self) -> Any:
        """Refuse the attempt's model calls from now on; returns its sealed session. Idempotent."""
        if self._sealing is None:
            self._sealing = asyncio.ensure_future(self._port.seal(*self._ids))
        return await asyncio.shield(self._sealing)

    async def _run_agent(self, slot: Slot, view: StoreView) -> Ended:
        try:
            runner = slot.runner(view)
            # What the agent's constructor started belongs to the slot; what starts from here on, to this attempt.
            current.set(self._owner)
            await runner.step(self._attempted.input, mode=self._attempted.mode)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Boundary to the agent: whatever it raises, SystemExit included, ends its attempt.
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
                self._sealed = await self.seal()
            finally:
                task.cancel()
        await self._wind_up(task, slot)
        if ended is not None:
            return ended
        if self._stop.done():
            return Ended(CANCELLED, "the attempt was cancelled", "CancelledError")
        return Ended(TIMEOUT, f"the agent ran longer than its {self._timeout:g} s", "TimeoutError")

    async def _wind_up(self, task: asyncio.Task[Ended], slot: Slot) -> None:
        """Let a cancelled agent clean up, then end its processes; it may be waiting for one of them."""
        if not task.done():
            await asyncio.wait({task}, timeout=CANCEL_GRACE_SECONDS)
        if self._processes is not None and await self._processes.end(self._owner):
            if not task.done():
                await asyncio.wait({task}, timeout=CANCEL_GRACE_SECONDS)
            await slot.thread_ended(CANCEL_GRACE_SECONDS)
        if not task.done():
            self.left_behind = task

    async def _end_tasks(self) -> None:
        """Cancel the tasks that the agent left running, after its spans are written: one of them may be writing."""
        leaked = [task for task in self._owner.tasks if not task.done()]
        self.leaked_tasks = len(leaked)
        for task in leaked:
            task.cancel()
        if leaked:
            await asyncio.wait(leaked, timeout=CANCEL_GRACE_SECONDS)

    async def _report(self, ended: Ended) -> None:
        status = ended.status
        if status == CANCELLED:
            await self._store.cancel_attempt(*self._ids)
            return
        if self._port.may_retry(self._sealed, status, ended.error_type or ""):
            # The store requeues only failed attempts, and an agent can succeed without a trainable turn.
            status = TIMEOUT if status == TIMEOUT else FAILED
        elif status == SUCCEEDED:
            self._store.succeed(*self._ids)
            return
        else:
            await self._store.forbid_retry(self._ids[0])
        metadata = {"error_type": ended.error_type, "error": ended.error} if ended.error else None
        await self._store.update_attempt(*self._ids, status=status, metadata=metadata)


def _verdict(task: asyncio.Task[Ended]) -> Ended:
    if task.cancelled():
        return Ended(FAILED, "the agent raised asyncio.CancelledError though nobody cancelled it", "CancelledError")
    return task.result()
