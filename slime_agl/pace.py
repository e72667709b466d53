"""A number of concurrent executions that follows the engine, for `agl.runners.max_concurrency: auto`.

Agents at their tools hold no request at the engine, but their conversations fill its prefix cache. With too few agents
the engine starves; with too many it evicts the conversation of each before its next turn, and computes it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from slime_agl.engine.base import Pressure

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 2.0
# Share of the tokens that the engine had seen, below which it evicts what agents come back to.
THRASHING = 0.85
# Held tokens of continued turns in a reading, below which they say nothing.
ENOUGH_TOKENS = 4096
# Of the executions, those with a request at the engine: below it, agents are at their tools and the engine has time.
IDLE = 1 / 8
# Requests that wait at the engine, for each that runs: above it, more agents only wait longer.
QUEUED = 0.25
# Weight of the newest reading of what runs and waits, which is of one moment, and of the length of what just ended.
NEWEST = 0.4
# Of the limit, the executions that must have ended since its last change before what it did can be told.
TOLD = 1 / 4
# Factors: while conversations fit, beyond that, and for a decrease.
DOUBLED, RAISED, LOWERED = 2.0, 1.125, 0.75
# Bounds on the limit, from what slime would run at a time, and where it begins if the engine does not say what fits.
LEAST, FIRST, MOST = 1 / 16, 1 / 4, 8


class Law:
    """The limit: as many executions as the engine can cache, and more while their agents are mostly at their tools.

    Conversations that do not fit evict each other, each before its next turn. An engine with time to spare loses
    nothing by computing them again; one without does.

    usual: what slime would run at a time; the limit stays between a sixteenth of it and eight times it. longest: bound
    on the tokens of an execution, from which the first limit follows; None if unknown.
    """

    def __init__(self, usual: int, longest: int | None = None) -> None:
        self._length = float(longest or 0)
        self.least, self.most = max(1, int(usual * LEAST)), usual * MOST
        self.limit = max(self.least, int(usual * FIRST))
        self.lowered = self.raised = 0
        self._begun = self._known = self._caches = False
        self._running = self._waiting = 0.0
        self._ended = 0

    def update(self, reading: Pressure, *, busy: int, waiting: int) -> int:
        """Return the new limit.

        reading: of the time since the last one. busy: executions that run. waiting: those that would, if the limit were
        higher.
        """
        self._note(reading)
        fits = self._fits(reading)
        if not self._begun:
            self._begun = True
            self.limit = min(self.limit, self._bounded(self.limit if fits is None else fits))
        elif fits is not None and self._known and self.limit < fits:
            if waiting and busy >= self.limit:
                self._change(min(fits, self.limit * DOUBLED))
        elif busy <= self.limit and self._ended >= TOLD * self.limit:  # else what is read is still of another limit
            if self._thrashes(reading) and not self._idle(busy):
                self._change(max(fits or 0.0, min(self.limit, busy or self.limit) * LOWERED))
            elif waiting and busy == self.limit and self._takes_more(reading, fits, busy):
                self._change(max(self.limit + 1, self.limit * RAISED))
        return self.limit

    def _change(self, limit: float) -> None:
        before, self.limit = self.limit, self._bounded(limit)
        self.raised += self.limit > before
        self.lowered += self.limit < before
        self._ended = 0

    def _bounded(self, limit: float) -> int:
        return min(self.most, max(self.least, int(limit)))

    def _fits(self, reading: Pressure) -> float | None:
        """Executions of the mean length whose tokens the engine can hold, None if unknown."""
        capacity = reading.load.capacity if reading.load is not None else None
        return capacity / self._length if capacity and self._length else None

    def _thrashes(self, reading: Pressure) -> bool:
        # An engine that has never kept a conversation has no cache that fewer agents could save.
        kept = _kept(reading)
        return self._caches and kept is not None and kept < THRASHING

    def _takes_more(self, reading: Pressure, fits: float | None, busy: int) -> bool:
        """Check whether the engine can take more than fits in its cache, or than now if the capacity is unknown."""
        if reading.load is None:
            return False
        return self._idle(busy) if fits is not None else self._waiting <= QUEUED * self._running

    def _idle(self, busy: int) -> bool:
        return self._running + self._waiting < IDLE * busy

    def _note(self, reading: Pressure) -> None:
        kept = _kept(reading)
        self._caches = self._caches or (kept is not None and kept >= THRASHING)
        if reading.load is not None:
            self._running += NEWEST * (reading.load.running - self._running)
            self._waiting += NEWEST * (reading.load.waiting - self._waiting)
        if reading.ended:
            mean = reading.ended_tokens / reading.ended
            self._length += (NEWEST if self._known else 1.0) * (mean - self._length)
            self._known = True
            self._ended += reading.ended


def _kept(reading: Pressure) -> float | None:
    """Share of the tokens of earlier turns that the engine still had, None if there were too few to say."""
    return reading.reused / reading.held if reading.held >= ENOUGH_TOKENS else None


class Room:
    """Admits at most `limit` holders at a time, in order of arrival; all if it is None. Lowering it evicts nobody."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.busy = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return sum(not turn.done() for turn in self._queue)

    def resize(self, limit: int) -> None:
        self._limit = limit
        self._let_in()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place, once there is one."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # let in at the same moment
                self._leave()
            raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self.busy -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._queue and (self._queue[0].done() or self._limit is None or self.busy < self._limit):
            turn = self._queue.popleft()
            if not turn.done():
                self.busy += 1
                turn.set_result(None)


class Rooms:
    """A room for each lane, so that parked executions never delay an evaluation, all with the same limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._rooms: dict[str, Room] = {}

    def place(self, lane: str) -> AbstractAsyncContextManager[None]:
        """See Room."""
        if lane not in self._rooms:
            self._rooms[lane] = Room(self._limit)
        return self._rooms[lane].place()

    def resize(self, limit: int) -> None:
        self._limit = limit
        for room in self._rooms.values():
            room.resize(limit)

    def demand(self) -> tuple[int, int]:
        """Executions that have a place, and those that wait for one."""
        rooms = self._rooms.values()
        return sum(room.busy for room in rooms), sum(room.waiting for room in rooms)


class Pace:
    """Reads the engine's load every two seconds while executions run, and applies the limit that the law computes.

    law: None for a fixed limit, with which this does nothing. read: the pressure, its token counts since the start.
    demand: (executions that run, those that would). apply: is given the limit.
    """

    def __init__(
        self,
        law: Law | None,
        *,
        read: Callable[[], Awaitable[Pressure]],
        demand: Callable[[], tuple[int, int]],
        apply: Callable[[int], None],
        pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(PERIOD_SECONDS),
    ) -> None:
        self.law = law
        self._read, self._demand, self._apply, self._pause = read, demand, apply, pause
        self._task: asyncio.Task[None] | None = None
        self._parked = False
        self._last = Pressure(load=None)

    def go_on(self) -> None:
        """Begin, or end a stay. On the runtime's loop; idempotent."""
        self._parked = False
        if self._task is None and self.law is not None:
            self._task = asyncio.ensure_future(self._follow(self.law))

    def stay(self) -> None:
        """Keep the limit while no turn may reach the engine: an idle engine would look like one that starves."""
        self._parked = True

    async def close(self) -> None:
        """End. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def metrics(self) -> dict[str, float]:
        """The limit now, and how often it was lowered and raised since the start."""
        law = self.law
        if law is None:
            return {}
        return {"concurrency_lowered": law.lowered, "concurrency_raised": law.raised, "concurrency": law.limit}

    async def _follow(self, law: Law) -> None:
        while True:
            await self._pause()
            busy, waiting = self._demand()
            if self._parked or not busy:
                continue
            try:
                reading = await self._read()
            except Exception as error:  # an engine or a worker that is being replaced; the next reading tells
                logger.debug("no reading of the engine: %r", error)
                continue
            if not self._parked:
                self._apply(law.update(reading.since(self._last), busy=busy, waiting=waiting))
            self._last = reading
