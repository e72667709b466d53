"""One request of an agent, from its arrival to its committed answer; and retries that join it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

from slime_agl.gateway.request import Answer

GRACE_SECONDS = 2.0
REPLAYS_HELD = 8


class Call:
    """A request being served. The client may leave; a retry within the grace period takes its place.

    refused: '' while its answer is wanted, then why not ('abandoned', 'sealed'); unwanted: happens at that moment.
    """

    def __init__(self, digest: Hashable) -> None:
        self.digest = digest
        self.task: asyncio.Task[list[Answer]] | None = None
        self.rids: set[str] = set()
        self.waiting = 0
        self.refused = ""
        self.unwanted = asyncio.Event()
        self.delivered = False
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    @property
    def wanted(self) -> bool:
        return not self.refused

    @property
    def orphaned(self) -> bool:
        return self.waiting == 0 and not self.delivered

    @property
    def repeatable(self) -> bool:
        """Whether a retry may have this call's answer: it is wanted, and did not fail."""
        done = self.task is not None and self.task.done()
        return self.wanted and not (done and (self.task.cancelled() or self.task.exception() is not None))

    def arrive(self) -> None:
        self.waiting += 1
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self, give_up: Callable[[Call], None]) -> None:
        """A client is gone before it had its answer. `give_up` runs when no retry came in time."""
        self.waiting -= 1
        if self.waiting == 0 and not self.delivered and self.wanted:
            self._changed.clear()
            self._timer = asyncio.get_running_loop().call_later(GRACE_SECONDS, give_up, self)

    async def claimed(self) -> None:
        """Wait until a client is there to be answered, or none will come (then `refused` says why)."""
        await self._changed.wait()

    def give_up(self, reason: str) -> None:
        """Nobody wants the answer any more, because of `reason`. The first reason stands."""
        self.refused = self.refused or reason
        self.unwanted.set()
        self._changed.set()
        self._cancel_timer()

    def settle(self) -> None:
        """The answer reached a client."""
        self.delivered = True
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Calls:
    """The calls of one attempt: those in flight, and the last answers that a marked retry may ask for again."""

    def __init__(self) -> None:
        self._calls: OrderedDict[int, Call] = OrderedDict()

    def in_flight(self) -> list[Call]:
        return [call for call in self._calls.values() if call.task is not None and not call.task.done()]

    def find(self, digest: Hashable, *, marked: bool) -> Call | None:
        """The call that this request repeats, or None when it is a call of its own.

        A request repeats a call with the same body whose client vanished; one that is marked as a
        retry also repeats a call whose client has not been seen to leave, or whose answer went out.
        """
        same = [call for call in reversed(self._calls.values()) if call.digest == digest and call.repeatable]
        orphans = [call for call in same if call.orphaned]
        if orphans:
            return orphans[0]
        return same[0] if marked and same else None

    def start(self, digest: Hashable, serve: Callable[[Call], Awaitable[list[Answer]]]) -> Call:
        call = Call(digest)
        call.task = asyncio.ensure_future(serve(call))
        call.task.add_done_callback(_retrieved)
        self._calls[id(call)] = call
        self._forget()
        return call

    def _forget(self) -> None:
        done = [k for k, call in self._calls.items() if call.task.done() and not (call.orphaned and call.wanted)]
        for at in done[: max(0, len(done) - REPLAYS_HELD)]:
            del self._calls[at]


def _retrieved(task: asyncio.Future) -> None:
    """Mark the outcome as seen: when every client left, nobody awaits the task."""
    if not task.cancelled():
        task.exception()
