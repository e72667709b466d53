"""Many rollouts at once, each attempt in a runner of Agent Lightning's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.lightning._agl import AttemptedRollout, LitAgent, LitAgentRunner, RolloutConfig
from slime_agl.lightning.agents import is_async
from slime_agl.lightning.attempts import AttemptRun, SessionPort
from slime_agl.lightning.clock import WorkingClock
from slime_agl.lightning.failures import FailureLog, UpstreamLogs
from slime_agl.lightning.outcome import FAILED, TIMEOUT, AttemptOutcome, RolloutOutcome
from slime_agl.lightning.store import ReleasingStore
from slime_agl.lightning.threads import ThreadedAgent
from slime_agl.lightning.tracer import RoutingTracer

Mode = Literal["auto", "async", "thread"]


class _Lane:
    """Where the rollouts of one mode run: their slots, and the time in which they may."""

    def __init__(self, first: int, slots: int) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.free = list(range(first + slots - 1, first - 1, -1))
        self.clock = WorkingClock()


class _Job:
    """A rollout that somebody waits for. `stop` is there while an attempt of it runs; `ending` forbids another."""

    def __init__(self, rollout_id: str, lane: _Lane) -> None:
        self.rollout_id = rollout_id
        self.lane = lane
        self.attempts: list[AttemptOutcome] = []
        self.stop: asyncio.Future[None] | None = None
        self.ending = False
        self.done: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()
        # A caller that was cancelled does not come back for the result.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())


class RunnerPool:
    """Runs rollouts of one agent through the store's queue, at most `max_concurrency` of each mode at a time.

    mode: 'async' runs the agent on this event loop; 'thread' gives each attempt a thread; 'auto' takes
        'async' for async agents and 'thread' for the others, which would block the loop.
    timeout_seconds: deadline of one attempt, from the moment it starts, pauses excepted. None: no deadline.
    max_attempts: tries at a rollout that fails or times out.

    Each mode is first in, first out, and has slots of its own, so that training rollouts which are paused
    never keep an evaluation waiting. Owned by the event loop that calls `start`.
    """

    def __init__(
        self,
        agent: LitAgent[Any],
        store: ReleasingStore,
        tracer: RoutingTracer,
        *,
        mode: Mode,
        max_concurrency: int,
        timeout_seconds: float | None,
        max_attempts: int,
        session: SessionPort,
    ) -> None:
        self._agent = _prepared(agent, mode)
        self._store = store
        self._tracer = tracer
        self._timeout = timeout_seconds
        self._max_attempts = max_attempts
        self._session = session
        self._lanes = {"train": _Lane(1, max_concurrency), "val": _Lane(max_concurrency + 1, max_concurrency)}
        self._runners: dict[int, LitAgentRunner[Any]] = {}
        self._jobs: dict[str, _Job] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._left_behind: set[asyncio.Task[Any]] = set()
        self._failures = FailureLog()
        self._upstream_logs = UpstreamLogs()
        self._open = False
        self.attempts: Counter[str] = Counter()
        self.spans = 0
        self.abandoned_tasks = 0

    async def start(self) -> None:
        """Install the tracer and accept rollouts. Raises ConfigError when another tracer is active."""
        self._tracer.install()
        self._upstream_logs.install()
        self._open = True

    async def close(self) -> None:
        """Cancel what runs, wait for it, and give the tracer back. May be called twice."""
        if not self._open:
            return
        self._open = False
        for lane in self._lanes.values():
            lane.clock.resume()
        try:
            await asyncio.gather(*(self._stop(job) for job in list(self._jobs.values())))
            await asyncio.gather(*self._serving)
        finally:
            self._upstream_logs.remove()
            self._tracer.uninstall()

    @property
    def abandoned_threads(self) -> int:
        """Threads of agents that were left behind at a deadline or a cancel, ever."""
        return self._agent.abandoned_threads if isinstance(self._agent, ThreadedAgent) else 0

    async def run(
        self,
        task: Any,
        *,
        mode: Literal["train", "val"],
        resources_id: str,
        metadata: Mapping[str, Any] | None = None,
        enqueued: Callable[[str], None] | None = None,
    ) -> RolloutOutcome:
        """Run the agent on a task until it succeeds or its attempts are used up.

        enqueued: told the rollout id before anything runs, for callers that may cancel.

        Cancelling seals and ends the attempt, and the rollout's status becomes 'cancelled'.

        Raises:
            SlimeAglError: the pool is not open, or closed while the rollout waited in the queue.
            Exception: what the session or the store raised; never what the agent raised.
        """
        if not self._open:
            raise SlimeAglError("the runner pool is closed; start it before running rollouts")
        config = RolloutConfig(max_attempts=self._max_attempts, retry_condition=[FAILED, TIMEOUT])
        rollout = await self._store.enqueue_rollout(
            task, mode=mode, resources_id=resources_id, config=config, metadata=dict(metadata or {})
        )
        job = self._jobs[rollout.rollout_id] = _Job(rollout.rollout_id, self._lanes[mode])
        if enqueued is not None:
            enqueued(rollout.rollout_id)
        self._serve_later(job)
        try:
            return await asyncio.shield(job.done)
        except asyncio.CancelledError:
            await self._stop(job)
            raise
        finally:
            self._jobs.pop(rollout.rollout_id, None)

    async def _stop(self, job: _Job) -> None:
        """End a job, whether it waits or runs; returns when it is quiet."""
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

    def pause(self, mode: Literal["train", "val"]) -> None:
        """Start no more agents of a mode, and stop the deadlines of those that run. May be called again."""
        self._lanes[mode].clock.pause()

    def resume(self, mode: Literal["train", "val"]) -> None:
        """End a pause. May be called again."""
        self._lanes[mode].clock.resume()

    def _serve_later(self, job: _Job) -> None:
        """Have a queued rollout served when a slot is free. Called each time that it enters the queue."""
        task = asyncio.create_task(self._serve(job), name="runner-pool")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, job: _Job) -> None:
        async with job.lane.slots:
            await job.lane.clock.running()
            slot = job.lane.free.pop()
            try:
                attempted = await self._store.dequeue(job.rollout_id, f"Worker-{slot}")
                # Nothing there: the rollout was withdrawn while this waited for its slot.
                if attempted is not None:
                    await self._serve_attempt(attempted, job, slot)
            finally:
                job.lane.free.append(slot)

    async def _serve_attempt(self, attempted: AttemptedRollout, job: _Job, slot: int) -> None:
        job.stop = asyncio.get_running_loop().create_future()
        try:
            outcome = await self._attempt(attempted, job, slot)
            rollout = await self._store.get_rollout_by_id(job.rollout_id)
        except asyncio.CancelledError:
            job.done.cancel()
            raise
        except Exception as error:
            # Not the agent's: the session's or the store's. It belongs to whoever asked for the rollout.
            job.done.set_exception(error)
            await self._store.cancel_attempt(job.rollout_id, attempted.attempt.attempt_id)
            return
        finally:
            job.stop = None
        job.attempts.append(outcome)
        requeued = rollout is not None and rollout.status == "requeuing"
        if requeued and not job.ending:
            self._serve_later(job)
            return
        if requeued:
            # It failed by itself at the moment it was stopped.
            await self._store.withdraw(job.rollout_id)
        job.done.set_result(RolloutOutcome(job.rollout_id, tuple(job.attempts)))

    async def _attempt(self, attempted: AttemptedRollout, job: _Job, slot: int) -> AttemptOutcome:
        run = AttemptRun(
            attempted,
            store=self._store,
            tracer=self._tracer,
            session=self._session,
            timeout_seconds=self._timeout,
            clock=job.lane.clock,
            stop=job.stop,
        )
        runner = self._runner(slot)
        outcome = await run.run(runner, slot)
        if run.left_behind is not None:
            self._leave_behind(run.left_behind, slot)
        else:
            # The runner would hold the attempt, and with it the task and its spans, until its next one.
            runner.init_worker(slot, self._store)
        self.attempts[outcome.status] += 1
        self.spans += len(outcome.spans)
        self._failures.note(outcome)
        return outcome

    def _runner(self, slot: int) -> LitAgentRunner[Any]:
        """The slot's runner. It lives as long as the pool: agents reach their tracer by a weak reference to it."""
        if slot not in self._runners:
            runner: LitAgentRunner[Any] = LitAgentRunner(self._tracer, max_rollouts=1, heartbeat_interval=0)
            runner.init(self._agent)
            self._runners[slot] = runner
        return self._runners[slot]

    def _leave_behind(self, task: asyncio.Task[Any], slot: int) -> None:
        """Let an agent that ignores its cancellation keep its runner, and the slot have a new one."""
        self.abandoned_tasks += 1
        del self._runners[slot]
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)


def _prepared(agent: LitAgent[Any], mode: Mode) -> LitAgent[Any]:
    if mode == "async" and not is_async(agent):
        raise ConfigError(
            "runners.mode is 'async' but the agent is not; a blocking agent would stop every other one. "
            "Use 'auto' or 'thread', or make the agent async"
        )
    if mode == "thread" or not is_async(agent):
        return ThreadedAgent(agent)
    return agent
