"""Who of the workers gets the next execution. No I/O: slots, and who waits for one."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from slime_agl.execution import Lane
from slime_agl.workers.link import Link


@dataclass(eq=False, slots=True)
class Member:
    """A worker that is ready. busy: executions it was given and has not returned. counts: its metrics, as last read.

    abandoned: tickets of executions it keeps that nobody can ask for any more.
    """

    link: Link
    slots: int
    busy: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    abandoned: deque[int] = field(default_factory=deque)


class Crew:
    """Gives each execution to the member with the fewest; when none has a free slot, in the order they came.

    limit: most executions at a time over all members.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._members: list[Member] = []
        self._waiting: dict[Lane, deque[tuple[int, asyncio.Future[Member]]]] = {"train": deque(), "val": deque()}
        self._arrivals = itertools.count()
        self._parked: set[Lane] = set()
        self._busy = 0

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def resize(self, limit: int) -> None:
        """Change the limit. Nobody is put out when it falls."""
        self._limit = limit
        self._hand_out()

    def demand(self) -> tuple[int, int]:
        """Executions that a member has, and those that wait for one."""
        return self._busy, sum(not waiter.done() for queue in self._waiting.values() for _, waiter in queue)

    def add(self, member: Member) -> None:
        self._members.append(member)
        self._hand_out()

    def remove(self, member: Member) -> bool:
        """Give it nothing more; False when it was removed before."""
        if member not in self._members:
            return False
        self._members.remove(member)
        return True

    def park(self, lane: Lane) -> None:
        """Start nothing of this lane until `resume`."""
        self._parked.add(lane)

    def resume(self, lane: Lane) -> None:
        self._parked.discard(lane)
        self._hand_out()

    async def reserve(self, lane: Lane) -> Member:
        """A member that keeps a slot for the caller, who has to `release` it."""
        waiter: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._waiting[lane].append((next(self._arrivals), waiter))
        self._hand_out()
        try:
            return await waiter
        except asyncio.CancelledError:
            # It may have been handed one in the same moment.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())
            raise

    def release(self, member: Member) -> None:
        member.busy -= 1
        self._busy -= 1
        self._hand_out()

    def refuse(self, error: Exception) -> None:
        """Tell all who wait that there will be no member for them."""
        for queue in self._waiting.values():
            while queue:
                _, waiter = queue.popleft()
                if not waiter.done():
                    waiter.set_exception(error)

    def _hand_out(self) -> None:
        while self._busy < self._limit and (queue := self._next_queue()) is not None:
            member = min((member for member in self._members if member.busy < member.slots), key=_load, default=None)
            if member is None:
                return
            _, waiter = queue.popleft()
            member.busy += 1
            self._busy += 1
            waiter.set_result(member)

    def _next_queue(self) -> deque[tuple[int, asyncio.Future[Member]]] | None:
        """The lane whose turn it is, with somebody at its head who still waits."""
        heads = []
        for lane, queue in self._waiting.items():
            while queue and queue[0][1].done():
                queue.popleft()
            if queue and lane not in self._parked:
                heads.append((queue[0][0], queue))
        return min(heads, key=_arrival)[1] if heads else None


def _arrival(head: tuple[int, object]) -> int:
    return head[0]


def _load(member: Member) -> float:
    return member.busy / member.slots
