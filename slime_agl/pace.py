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
# Share of the tokens that the engine had seen: below the first it evicts what agents come back to, above the second
# it does not.
THRASHING, REUSED = 0.85, 0.95
# Held tokens of continued turns in a reading, below which they say nothing.
ENOUGH_TOKENS = 4096
# Requests that wait at the engine, for each that runs: above it, more agents only wait longer.
QUEUED = 0.25
# Of the engine's tokens: above it, the next conversations push out those of others.
FULL = 0.95
LOWERED, RAISED = 0.75, 1.125
# Bounds on the limit, from what slime would run at a time.
LEAST, MOST = 1 / 16, 8


class Law:
    """The limit, by additive growth while the engine can take more and a quick decrease when it cannot.

    first: the limit to begin with. It stays between a sixteenth and eight times it.
    """

    def __init__(self, first: int) -> None:
        self.limit = first
        self.least, self.most = max(1, int(first * LEAST)), first * MOST
        self.lowered = self.raised = 0
        self._settling = self._caches = False

    def update(self, reading: Pressure, *, busy: int, waiting: int) -> int:
        """Return the new limit.

        reading: of the time since the last one. busy: executions that run. waiting: those that would, if the limit were
        higher.
        """
        self._caches = self._caches or (reading.held >= ENOUGH_TOKENS and reading.reused >= REUSED * reading.held)
        self._settling = self._settling and busy > self.limit
        if self._settling:
            return self.limit  # the last decrease has not come about yet: what is read is still of more agents
        if self._too_many(reading):
            self.limit = max(self.least, int(min(self.limit, busy or self.limit) * LOWERED))
            self.lowered += 1
            self._settling = busy > self.limit
        elif waiting and busy >= self.limit and self._may_take_more(reading):
            self.limit = min(self.most, max(self.limit + 1, int(self.limit * RAISED)))
            self.raised += 1
        return self.limit

    def _too_many(self, reading: Pressure) -> bool:
        # An engine that has never kept a conversation has no cache that fewer agents could save.
        return self._caches and reading.held >= ENOUGH_TOKENS and reading.reused < THRASHING * reading.held

    def _may_take_more(self, reading: Pressure) -> bool:
        load = reading.load
        if load is None or load.waiting > QUEUED * load.running:
            return False
        if self._caches and reading.held >= ENOUGH_TOKENS and reading.reused < REUSED * reading.held:
            return False
        return load.usage is None or load.usage < FULL


class Room:
    """Lets in as many as `limit` at a time, all if it is None, first in, first out. Who is in stays when it falls."""

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
    """Reads the engine every two seconds while executions run, and applies what the law says.

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
        self._held = self._reused = 0

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
                self._apply(law.update(self._since(reading), busy=busy, waiting=waiting))

    def _since(self, reading: Pressure) -> Pressure:
        """The pressure with its counts since the last reading; a worker that died has taken its counts along."""
        held, reused = max(0, reading.held - self._held), max(0, reading.reused - self._reused)
        self._held, self._reused = reading.held, reading.reused
        return Pressure(load=reading.load, held=held, reused=min(held, reused))
