"""Run many rollouts concurrently, each attempt in one of Agent Lightning's own runners."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.lightning._agl import AttemptedRollout, RolloutConfig
from slime_agl.lightning.agents import Agents
from slime_agl.lightning.attempts import AttemptPort, RunningAttempt
from slime_agl.lightning.clock import WorkingClock
from slime_agl.lightning.exits import Exits
from slime_agl.lightning.failures import FailureLog, UpstreamLogs
from slime_agl.lightning.foreign_calls import ForeignCalls
from slime_agl.lightning.outcome import FAILED, TIMEOUT, AttemptOutcome, Lane, RolloutOutcome
from slime_agl.lightning.owner import Name, Owner
from slime_agl.lightning.processes import Processes
from slime_agl.lightning.slots import Mode, Slot, Slots
from slime_agl.lightning.store import ReleasingStore
from slime_agl.lightning.tracer import RoutingTracer
from slime_agl.lightning.watchdog import LoopWatchdog
from slime_agl.loops import to_its_end


class _LaneSlots:
    """The slots in which the rollouts of one lane run, and the clock of their deadlines."""

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = asyncio.Semaphore(len(slots))
        self.free = slots
        self.clock = WorkingClock()


class _Job:
    """A rollout that a caller waits for. stop: set while an attempt runs. ending: no further attempt may follow."""

    def __init__(self, rollout_id: str, lane: _LaneSlots, port: AttemptPort) -> None:
        self.rollout_id, self.lane, self.port = rollout_id, lane, port
        self.attempts: list[AttemptOutcome] = []
        self.stop: asyncio.Future[None] | None = None
        self.ending = False
        self.done: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()
        # A cancelled caller does not retrieve the result.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())


class RunnerPool:
    """Runs rollouts of one agent through the store's queue, at most `max_concurrency` of each lane at a time.

    mode: `agl.runners.mode`. 'async' runs agents on this event loop; 'thread' gives each attempt a thread; 'auto' uses
        'async' for async agents and 'thread' for the others, which would block the loop.
    timeout_seconds: deadline of an attempt, from its start, pauses excluded. None: no deadline.
    max_attempts: attempts at a rollout that fails or times out.
    end_leftovers: end the tasks and processes that an attempt started with it.

    Every slot has its own agent; an agent that cannot be copied runs one execution at a time. Each lane is first in,
    first out, with its own slots, so paused training rollouts never delay an evaluation. Owned by the event loop that
    calls `start`.
    """

    def __init__(
        self,
        agents: Agents,
        store: ReleasingStore,
        tracer: RoutingTracer,
        *,
        mode: Mode,
        max_concurrency: int,
        timeout_seconds: float | None,
        max_attempts: int,
        end_leftovers: bool = True,
        hopeless: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._store = store
        self._tracer = tracer
        self._timeout = timeout_seconds
        self._max_attempts = max_attempts
        slots, self._alone = Slots(agents, mode, tracer), asyncio.Lock() if agents.uncopyable else None
        count = 1 if agents.uncopyable else max_concurrency
        self._lanes = {"train": _LaneSlots(slots.slots(1, count)), "val": _LaneSlots(slots.slots(count + 1, count))}
        self._holder: _LaneSlots | None = None
        self._owners: dict[Name, Owner] = {}
        self._jobs: dict[str, _Job] = {}
        self._ended: list[str] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._left_behind: set[asyncio.Task[object]] = set()
        self._failures = FailureLog()
        self._upstream_logs = UpstreamLogs()
        self._open = False
        self.calls = ForeignCalls(self._owners.__contains__)
        self.processes = Processes() if end_leftovers else None
        self._end_tasks = end_leftovers
        self.watchdog = LoopWatchdog(
            asyncio.get_running_loop(), threading.get_ident(), limit=timeout_seconds, hopeless=hopeless
        )
        self.exits = Exits()
        self.attempts: Counter[str] = Counter()
        self.spans = 0
        self.abandoned_tasks = self.abandoned_threads = self.leaked_tasks = 0

    async def start(self) -> None:
        """Install the tracer and accept rollouts. Raises ConfigError when another tracer is active."""
        self._tracer.install()
        self._upstream_logs.install()
        self.calls.install()
        if self.processes is not None:
            self.processes.install()
        self.watchdog.start()
        self._open = True

    async def close(self) -> None:
        """Cancel and await all rollouts, and release the tracer. Idempotent."""
        if not self._open:
            return
        self._open = False
        for lane in self._lanes.values():
            lane.clock.resume()
        try:
            await asyncio.gather(*(self._stop(job) for job in list(self._jobs.values())))
            await asyncio.gather(*self._serving)
            if self.processes is not None:
                await self.processes.close()
        finally:
            self.watchdog.stop()
            self.calls.remove()
            self._upstream_logs.remove()
            self._tracer.uninstall()

    async def run(
        self,
        task: object,
        *,
        lane: Lane,
        resources_id: str,
        port: AttemptPort,
        max_attempts: int | None = None,
    ) -> RolloutOutcome:
        """Run the agent on a task until it succeeds or its attempts are used up.

        port: opens and seals its sessions. max_attempts: an upper bound below the pool's own.

        Cancelling seals the session and ends the attempt before this returns, even if it is cancelled again meanwhile;
        the rollout's status becomes 'cancelled'.

        Raises:
            ConfigError: a paused rollout uses the only agent.
            SlimeAglError: the pool is not open, or was closed while the rollout was queued.
            Exception: whatever the port or the store raised; never an error of the agent.
        """
        if not self._open:
            raise SlimeAglError("the runner pool is closed; start it before running rollouts")
        if self._holder is not None and self._holder is not self._lanes[lane] and self._holder.clock.paused:
            raise ConfigError(
                "an execution that was parked at the end of its step holds the only agent, which cannot be copied; "
                "name the agent's class as agl.agent, or a factory without parameters, or leave --partial-rollout out"
            )
        tries = min(self._max_attempts, max_attempts or self._max_attempts)
        config = RolloutConfig(max_attempts=tries, retry_condition=[FAILED, TIMEOUT])
        rollout_id = self._store.enqueue(task, mode=lane, resources_id=resources_id, config=config)
        job = self._jobs[rollout_id] = _Job(rollout_id, self._lanes[lane], port)
        self._serve_later(job)
        try:
            return await asyncio.shield(job.done)
        except asyncio.CancelledError:
            await to_its_end(self._stop(job))
            raise
        finally:
            self._jobs.pop(rollout_id, None)
            self._ended.append(rollout_id)

    def take_ended(self) -> list[str]:
        """Return the rollouts that ended since the last call, cancelled ones included; the store still has them."""
        ended, self._ended = self._ended, []
        return ended

    async def _stop(self, job: _Job) -> None:
        """End a queued or running job; returns when its attempt has ended."""
        if job.done.done():
            return
        if job.stop is None:
            await self._store.withdraw(job.rollout_id)
            job.done.set_exception(SlimeAglError(f"rollout {job.rollout_id} was withdrawn from the queue"))
            return
        job.ending = True
        if not job.stop.done():
            job.stop.set_result(None)
        await asyncio.wait({job.done})

    def pause(self, lane: Lane) -> None:
        """Start no more agents of a lane and stop the deadlines of running ones. Idempotent."""
        self._lanes[lane].clock.pause()

    def resume(self, lane: Lane) -> None:
        """End a pause. Idempotent."""
        self._lanes[lane].clock.resume()

    def _serve_later(self, job: _Job) -> None:
        """Serve a queued rollout once a slot is free. Called each time it enters the queue."""
        task = asyncio.create_task(self._serve(job), name="runner-pool")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, job: _Job) -> None:
        async with job.lane.slots:
            await job.lane.clock.running()
            async with self._agent_for(job.lane):
                slot = job.lane.free.pop()
                try:
                    attempted = self._store.dequeue(job.rollout_id, f"Worker-{slot.number}")
                    # None: the rollout was withdrawn while waiting for its slot.
                    if attempted is not None:
                        await self._serve_attempt(attempted, job, slot)
                finally:
                    job.lane.free.append(slot)

    @asynccontextmanager
    async def _agent_for(self, lane: _LaneSlots) -> AsyncIterator[None]:
        """Lock the agent if all slots share one."""
        if self._alone is None:
            yield
            return
        while True:
            async with self._alone:
                if not lane.clock.paused:
                    self._holder = lane
                    try:
                        yield
                    finally:
                        self._holder = None
                    return
            await lane.clock.running()

    async def _serve_attempt(self, attempted: AttemptedRollout, job: _Job, slot: Slot) -> None:
        stop = job.stop = asyncio.get_running_loop().create_future()
        try:
            outcome = await self._attempt(attempted, job, slot, stop)
            requeued = self._store.status(job.rollout_id) == "requeuing"
        except asyncio.CancelledError:
            job.done.cancel()
            raise
        except Exception as error:
            # An error of the port or the store, not of the agent: the caller gets it.
            job.done.set_exception(error)
            await self._store.cancel_attempt(job.rollout_id, attempted.attempt.attempt_id)
            return
        finally:
            job.stop = None
        job.attempts.append(outcome)
        if requeued and not job.ending:
            self._serve_later(job)
            return
        if requeued:
            # It failed on its own at the moment it was stopped.
            await self._store.withdraw(job.rollout_id)
        job.done.set_result(RolloutOutcome(job.rollout_id, tuple(job.attempts)))

    async def _attempt(
        self, attempted: AttemptedRollout, job: _Job, slot: Slot, stop: asyncio.Future[None]
    ) -> AttemptOutcome:
        owner = Owner(attempted.rollout_id, attempted.attempt.attempt_id)
        run = RunningAttempt(
            attempted,
            store=self._store,
            spans=self._tracer.spans,
            port=job.port,
            timeout_seconds=self._timeout,
            clock=job.lane.clock,
            stop=stop,
            owner=owner,
            processes=self.processes,
            end_tasks=self._end_tasks,
        )
        self._owners[owner.name] = owner
        try:
            outcome = await run.run(slot)
        finally:
            del self._owners[owner.name]
        self.abandoned_threads += slot.thread_left
        self.leaked_tasks += run.leaked_tasks
        if owner.state == "left_behind":
            self._leave_behind(run.left_behind, slot)
        slot.rest(self._store)
        self.attempts[outcome.status] += 1
        self.spans += len(outcome.spans)
        self._failures.note(outcome)
        return outcome

    def _leave_behind(self, task: asyncio.Task[object] | None, slot: Slot) -> None:
        """Give the slot a new agent and runner; one that is still running keeps the old ones."""
        slot.renew()
        if task is not None:
            self.abandoned_tasks += 1
            self._left_behind.add(task)
            task.add_done_callback(self._left_behind.discard)
