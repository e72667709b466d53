"""Wait for all rollouts of a store at once, and notice attempts whose runner is gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slime_agl.errors import SlimeAglError
from slime_agl.lightning._agl import AttemptedRollout, Rollout, Worker
from slime_agl.lightning.clock import WorkingClock
from slime_agl.lightning.open_rollouts import OpenRollout
from slime_agl.lightning.outcome import Lane
from slime_agl.lightning.stores import ExternalStore

FIRST_SECONDS, MOST_SECONDS, GROWTH = 0.05, 1.0, 1.5
# A look may take this share of the time at most.
SHARE = 0.05
CENSUS_SECONDS, COMPARE_SECONDS = 5.0, 60.0
IDLE_SECONDS = 30.0
# Without an answer of the store for this long, everything that waits for it fails.
SILENT_SECONDS = 300.0
RUNNING = ("preparing", "running")
FINISHED = ("succeeded", "failed", "cancelled")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sign:
    """The last sign of an attempt: what was seen, and when by the clock of its lane."""

    seen: object
    since: float


class Watch:
    """Looks after the open rollouts of a store with one request for all, ever less often while nothing ends.

    lost: attempts given up since the start because their runner was gone. runners: that have asked for work lately.
    looks, look_seconds: number and total duration of the requests.
    """

    def __init__(self, store: ExternalStore, lost_seconds: float) -> None:
        self._external, self._lost_seconds = store, lost_seconds
        self._open: dict[str, OpenRollout] = {}
        self._signs: dict[tuple[str, str], _Sign] = {}
        self._beats: dict[str, _Sign] = {}
        self._some, self._hinted = asyncio.Event(), asyncio.Event()
        self._clocks: dict[str, WorkingClock] = {}
        self._task: asyncio.Task[None] | None = None
        self._finishing: dict[str, asyncio.Task[None]] = {}
        self._answered = self._worked = self._compared = 0.0
        self._silence_told = False
        self.lost = self.runners = self.looks = 0
        self.look_seconds = 0.0

    def start(self) -> None:
        self._clocks = {"train": WorkingClock(), "val": WorkingClock()}
        self._task = asyncio.create_task(self._look_on(), name="store-watch")

    async def stop(self) -> None:
        tasks = [*self._finishing.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, rollout: OpenRollout) -> None:
        if not self._open:
            self._answered = self._worked = self._compared = time.monotonic()
        self._open[rollout.rollout_id] = rollout
        self._some.set()
        self.hint()

    def hint(self) -> None:
        """An agent may end soon, since it has its answer: look again at short intervals."""
        self._hinted.set()

    def remove(self, rollout: OpenRollout) -> None:
        self._open.pop(rollout.rollout_id, None)
        for name in [name for name in self._signs if name[0] == rollout.rollout_id]:
            del self._signs[name]
        if not self._open:
            self._some.clear()

    def pause(self, lane: Lane) -> None:
        self._clocks[lane].pause()

    def resume(self, lane: Lane) -> None:
        self._clocks[lane].resume()

    async def _look_on(self) -> None:
        wait, census = FIRST_SECONDS, time.monotonic()
        while True:
            await self._some.wait()
            await self._wait(wait)
            began = time.monotonic()
            found = False
            try:
                found = await self._look()
                took = time.monotonic() - began
                if began - census >= CENSUS_SECONDS:
                    census = began
                    await self._count()
                self._answered, self._silence_told = time.monotonic(), False
            except Exception as error:  # the store's client raises whatever its HTTP library raises
                self._silent(error)
                took = time.monotonic() - began
            self.looks += 1
            self.look_seconds += took
            await asyncio.sleep(min(took / SHARE, MOST_SECONDS))
            wait = FIRST_SECONDS if found else min(wait * GROWTH, MOST_SECONDS)

    async def _wait(self, seconds: float) -> None:
        """Wait, but not much longer than FIRST_SECONDS after a hint."""
        try:
            async with asyncio.timeout(seconds):
                await self._hinted.wait()
        except TimeoutError:
            return
        self._hinted.clear()
        await asyncio.sleep(FIRST_SECONDS)

    async def _look(self) -> bool:
        """Finish what has ended; return whether anything had."""
        waiting = [rollout_id for rollout_id in self._open if rollout_id not in self._finishing]
        if not waiting:
            return False
        ended = await self._external.store.query_rollouts(rollout_id_in=waiting, status_in=FINISHED)
        for rollout in ended:
            opened = self._open.get(rollout.rollout_id)
            if opened is not None:
                self._finish(opened, rollout)
        return bool(ended)

    def _finish(self, rollout: OpenRollout, found: Rollout) -> None:
        task = asyncio.create_task(self._finished(rollout, found), name=f"finish-{rollout.rollout_id}")
        self._finishing[rollout.rollout_id] = task
        task.add_done_callback(lambda _: self._finishing.pop(rollout.rollout_id, None))

    async def _finished(self, rollout: OpenRollout, found: Rollout) -> None:
        try:
            await rollout.finish(found)
        except SlimeAglError as error:
            if not rollout.done.done():
                rollout.done.set_exception(error)
        except Exception as error:  # the store's client raises whatever its HTTP library raises; looked at again
            self._silent(error)
            await asyncio.sleep(MOST_SECONDS)

    def _silent(self, error: Exception) -> None:
        """The store did not answer: say so once, and fail everything that waits after SILENT_SECONDS."""
        where = self._external.where
        if not self._silence_told:
            self._silence_told = True
            logger.warning("the store at %s does not answer (%s: %s); waiting", where, type(error).__name__, error)
        if time.monotonic() - self._answered > SILENT_SECONDS:
            for rollout in list(self._open.values()):
                if not rollout.done.done():
                    rollout.done.set_exception(
                        SlimeAglError(f"the store at {where} has not answered for {SILENT_SECONDS:g} s: {error}")
                    )

    async def _count(self) -> None:
        """Look at the runners and at the rollouts that they run; now and then at all, for those that have vanished."""
        store = self._external.store
        open_ = dict(self._open)
        running = await store.query_rollouts(rollout_id_in=list(open_), status_in=RUNNING)
        workers = {worker.worker_id: worker for worker in await store.query_workers()}
        self._note_runners(workers)
        if running:
            self._worked = time.monotonic()
        elif time.monotonic() - self._worked > IDLE_SECONDS:
            self._worked = time.monotonic()
            logger.warning(
                "%d rollouts wait in the store at %s, and no runner has taken one for %g s; start runners with "
                "AGL_CURRENT_ROLE=runner, or see whether those that run are busy with agents that do not end",
                len(open_),
                self._external.where,
                IDLE_SECONDS,
            )
        for rollout in running:
            opened = open_.get(rollout.rollout_id)
            if opened is not None and isinstance(rollout, AttemptedRollout):
                await self._judge(opened, rollout, workers)
        if time.monotonic() - self._compared >= COMPARE_SECONDS:
            self._compared = time.monotonic()
            self._fail_vanished(open_, await store.query_rollouts(rollout_id_in=list(open_)))

    def _fail_vanished(self, open_: Mapping[str, OpenRollout], present: Iterable[Rollout]) -> None:
        there = {rollout.rollout_id for rollout in present}
        for rollout_id, opened in open_.items():
            if rollout_id not in there and not opened.done.done():
                opened.done.set_exception(
                    SlimeAglError(
                        f"the store at {self._external.where} no longer has rollout {rollout_id}; was it restarted? "
                        "Its rollouts do not survive that"
                    )
                )

    def _note_runners(self, workers: Mapping[str, Worker]) -> None:
        now = time.monotonic()
        for name, worker in workers.items():
            seen = (worker.last_heartbeat_time, worker.last_dequeue_time, worker.last_busy_time)
            beat = self._beats.get(name)
            if beat is None or beat.seen != seen:
                self._beats[name] = _Sign(seen, now)
        self.runners = sum(now - beat.since < self._lost_seconds for beat in self._beats.values())

    async def _judge(self, opened: OpenRollout, rollout: AttemptedRollout, workers: Mapping[str, Worker]) -> None:
        """Give an attempt up if its runner is gone: the store then runs it again, or fails it."""
        attempt, clock = rollout.attempt, self._clocks[opened.lane]
        known = opened.attempt(attempt.attempt_id)
        turns = (0, 0) if known is None else (known.spans.in_flight, known.spans.written)
        name, seen = (rollout.rollout_id, attempt.attempt_id), (attempt.last_heartbeat_time, turns)
        sign = self._signs.get(name)
        if sign is None or sign.seen != seen or turns[0]:
            self._signs[name] = _Sign(seen, clock.seconds())
            return
        if clock.paused or clock.seconds() - sign.since < self._lost_seconds:
            return
        worker = workers.get(attempt.worker_id or "")
        if worker is None or not self._is_gone(worker, attempt.start_time):
            return
        self.lost += 1
        opened.lost.add(attempt.attempt_id)
        logger.warning(
            "attempt %s of rollout %s has given no sign for %g s, and its runner %s is gone",
            attempt.attempt_id,
            rollout.rollout_id,
            self._lost_seconds,
            worker.worker_id,
        )
        await self._external.store.update_attempt(*name, status="unresponsive")

    def _is_gone(self, worker: Worker, attempt_began: float) -> bool:
        """Its heartbeats have stopped, or a process of its name has asked for other work, which one at work does not.

        Runners of several machines may share a name; then each hides the death of the other, or its other work looks
        like one: an attempt that gives no sign for so long is then run again though its runner lives.
        """
        beat = self._beats.get(worker.worker_id)
        stopped = beat is not None and time.monotonic() - beat.since >= self._lost_seconds
        return stopped or (worker.last_dequeue_time or 0.0) > attempt_began + 1.0
