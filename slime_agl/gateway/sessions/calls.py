"""An agent's request from arrival to committed answer, and the retries that join it.

Clients retry on their own after timeouts. Sampling a retry again would put two trained answers to one request into the
ledger, of which the agent uses one; so a retry joins its call. Equal requests without any sign of a retry are distinct
calls, as in best-of-n.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.request import TurnAnswer

GRACE_SECONDS = 2.0
ENDED_KEPT = 64
LONGEST_KEY = 255


Task = asyncio.Task[list[TurnAnswer]]


@dataclass(frozen=True, slots=True)
class Mark:
    """The retry headers of a request.

    key: its Idempotency-Key, '' if absent. tries: number of earlier tries by its client.
    """

    key: str = ""
    tries: int = 0

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Mark:
        """Read the headers of a request. Raises Refusal, 400, if the key is too long."""
        key = headers.get("Idempotency-Key", "")
        if len(key) > LONGEST_KEY:
            raise Refusal(400, f"Idempotency-Key has {len(key)} characters, at most {LONGEST_KEY} are taken")
        count = headers.get("x-stainless-retry-count", "0")
        if not key and count == "0":
            return FIRST_TRY
        return cls(key, int(count) if count.isdecimal() and len(count) < 10 else bool(count))


FIRST_TRY = Mark()


class Call:
    """A request being served. Its client may leave; a retry within the grace period takes its place.

    serve: produces the answers; starts at once. tries: number of earlier tries named by the latest request for it.
    refused: '' while its answer is wanted, then why not ('abandoned', 'sealed'). task: serves it, None once that ended.
    """

    __slots__ = (
        *("_changed", "_ended", "_outcome", "_rids", "_timer", "_unwanted", "delivered", "digest", "key", "refused"),
        *("retried", "task", "tries", "waiting"),
    )

    def __init__(
        self, digest: Hashable, serve: Callable[[Call], Coroutine[Any, Any, list[TurnAnswer]]], mark: Mark = FIRST_TRY
    ) -> None:
        self.digest, self.key, self.tries = digest, mark.key, mark.tries
        # None once it has ended: an empty set takes 0.2 KB.
        self._rids: set[str] | None = set()
        self.waiting = 0
        self.refused = ""
        self.delivered = False
        self.retried = False
        self._timer: asyncio.TimerHandle | None = None
        # Created on demand: hundreds of calls are kept for a retry that never comes.
        self._changed: asyncio.Event | None = None
        self._unwanted: asyncio.Event | None = None
        self._ended: asyncio.Event | None = None
        self._outcome: list[TurnAnswer] | BaseException = []
        self.task: Task | None = asyncio.get_running_loop().create_task(self._serve(serve))

    @property
    def wanted(self) -> bool:
        return not self.refused

    @property
    def unwanted(self) -> asyncio.Event:
        """Set once the answer is no longer wanted."""
        if self._unwanted is None:
            self._unwanted = asyncio.Event()
            if self.refused:
                self._unwanted.set()
        return self._unwanted

    @property
    def orphaned(self) -> bool:
        return self.waiting == 0 and not self.delivered

    @property
    def repeatable(self) -> bool:
        """Check that a retry may receive this call's answer: it is wanted, and has not failed."""
        return self.wanted and not (self.done and isinstance(self._found(), BaseException))

    @property
    def done(self) -> bool:
        return self.task is None or self.task.done()

    def result(self) -> list[TurnAnswer]:
        """The answers, once done. Raises what `serve` raised."""
        found = self._found()
        if isinstance(found, BaseException):
            raise found
        return found

    def asks(self, rid: str) -> None:
        """Record a request to the engine. `heard` follows."""
        if self._rids is not None:
            self._rids.add(rid)

    def heard(self, rid: str) -> None:
        if self._rids is not None:
            self._rids.discard(rid)

    @property
    def rids(self) -> tuple[str, ...]:
        """The ids of its requests that the engine has not answered."""
        return tuple(self._rids or ())

    def arrive(self) -> None:
        self.waiting += 1
        self._tell()

    def leave(self, give_up: Callable[[Call], None]) -> None:
        """Record that a client left without its answer. `give_up` runs if no retry arrives in time."""
        self.waiting -= 1
        if self.waiting == 0 and not self.delivered and self.wanted:
            self._timer = asyncio.get_running_loop().call_later(GRACE_SECONDS, give_up, self)

    async def answers(self) -> list[TurnAnswer]:
        """Wait for the answers. Raises what `serve` raises. Cancelling a waiter does not cancel the call.

        Why not `asyncio.shield`: its callback wakes the waiter one round of the event loop later.
        """
        if not self.done:
            if self._ended is None:
                self._ended = asyncio.Event()
            await self._ended.wait()
        return self.result()

    def close(self) -> None:
        """Keep the outcome only, for retries: 64 ended calls are kept, and an event alone takes 0.8 KB."""
        self._end()  # for a task that was cancelled before it began
        self._outcome, self.task = self._found(), None
        self._ended = self._changed = self._rids = None

    async def _serve(self, serve: Callable[[Call], Coroutine[Any, Any, list[TurnAnswer]]]) -> list[TurnAnswer]:
        try:
            return await serve(self)
        finally:
            self._end()

    async def claimed(self) -> None:
        """Wait until a client can be answered, or none will come (then `refused` says why)."""
        while not self.waiting and self.wanted:
            self._changed = asyncio.Event()
            await self._changed.wait()

    def give_up(self, reason: str) -> None:
        """Mark the answer as unwanted. The first reason is kept."""
        self.refused = self.refused or reason
        if self._unwanted is not None:
            self._unwanted.set()
        self._tell()

    def settle(self) -> None:
        """Record that the answer reached a client."""
        self.delivered = True
        self._tell()

    def _found(self) -> list[TurnAnswer] | BaseException:
        if self.task is None:
            return self._outcome
        if self.task.cancelled():
            return asyncio.CancelledError()
        return self.task.exception() or self.task.result()

    def _end(self) -> None:
        """Wake those that wait for the answers. They run once the task is done."""
        if self._ended is not None:
            self._ended.set()

    def _tell(self) -> None:
        """Wake `claimed`, and end the grace period."""
        if self._changed is not None:
            self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class CallTable:
    """The calls of one attempt: those in flight, and ended ones whose answer a retry may request.

    Calls with an Idempotency-Key are kept while the attempt is open, others until ENDED_KEPT more have ended.
    """

    def __init__(self) -> None:
        self._flying: dict[int, Call] = {}
        self._ended: deque[Call] = deque()
        self._keyed: dict[str, Call] = {}
        self._same: dict[Hashable, list[Call]] = {}

    def __len__(self) -> int:
        """Number of calls in flight."""
        return len(self._flying)

    def in_flight(self) -> list[Call]:
        return [call for call in self._flying.values() if not call.done]

    def tasks(self) -> list[Task]:
        """Return the tasks that serve the calls in flight."""
        return [call.task for call in self._flying.values() if call.task is not None and not call.task.done()]

    def find(self, digest: Hashable, mark: Mark) -> Call | None:
        """Find the call that this request repeats; None if it is a new call.

        An Idempotency-Key alone decides if present. Otherwise a request repeats a call with the same body whose client
        vanished. A request with earlier tries also repeats one whose client has not been seen to leave, or whose answer
        was sent, latest first. Because tries are numbered, retries of several equal calls each find their own.

        Raises:
            Refusal: 422, the key was used with another request.
        """
        if mark.key:
            return self._keyed_call(digest, mark.key)
        same = self._same.get(digest, ())
        orphans = [call for call in same if call.orphaned and call.repeatable]
        if orphans:
            return max(orphans, key=lambda call: call.tries < mark.tries)
        if not mark.tries:
            return None
        for call in same:
            if call.tries == mark.tries - 1 and not (call.retried or call.repeatable):
                call.retried = True
                return None
        earlier = [call for call in same if call.repeatable and call.tries < mark.tries]
        return max(reversed(earlier), key=lambda call: call.tries, default=None)

    def start(
        self, digest: Hashable, mark: Mark, serve: Callable[[Call], Coroutine[Any, Any, list[TurnAnswer]]]
    ) -> Call:
        """Start serving a new call."""
        call = Call(digest, serve, mark)
        self._flying[id(call)] = call
        if call.key:
            self._keyed[call.key] = call
        else:
            self._same.setdefault(digest, []).append(call)
        assert call.task is not None, "it has just begun"
        call.task.add_done_callback(lambda _: self._end(call))
        return call

    def _keyed_call(self, digest: Hashable, key: str) -> Call | None:
        call = self._keyed.get(key)
        if call is None:
            return None
        if call.digest != digest:
            raise Refusal(
                422,
                f"Idempotency-Key {key!r} was used with another request of this attempt; send a new key with a new "
                "request, and the same body with the same key",
                type="idempotency_error",
                code="idempotency_key_reused",
            )
        return call if call.repeatable else None

    def _end(self, call: Call) -> None:
        call.close()
        del self._flying[id(call)]
        if call.key:
            return
        self._ended.append(call)
        for _ in range(len(self._ended) - ENDED_KEPT):
            self._forget(self._ended.popleft())

    def _forget(self, call: Call) -> None:
        if call.orphaned and call.repeatable:  # its client may still retry
            self._ended.append(call)
            return
        same = self._same[call.digest]
        same.remove(call)
        if not same:
            del self._same[call.digest]
