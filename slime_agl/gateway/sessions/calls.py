"""One request of an agent, from its arrival to its committed answer; and retries that join it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass

from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.request import TurnAnswer

GRACE_SECONDS = 2.0
ENDED_KEPT = 64
LONGEST_KEY = 255


@dataclass(frozen=True, slots=True)
class Mark:
    """What a request says about being a repetition.

    key: its Idempotency-Key, '' for none. tries: how many times its client tried before.
    """

    key: str = ""
    tries: int = 0

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Mark:
        """Read the headers of a request. Raises Refusal, 400, when the key is too long."""
        key = headers.get("Idempotency-Key", "")
        if len(key) > LONGEST_KEY:
            raise Refusal(400, f"Idempotency-Key has {len(key)} characters, at most {LONGEST_KEY} are taken")
        count = headers.get("x-stainless-retry-count", "0")
        if not key and count == "0":
            return FIRST_TRY
        return cls(key, int(count) if count.isdecimal() and len(count) < 10 else bool(count))


FIRST_TRY = Mark()


class Call:
    """A request being served. The client may leave; a retry within the grace period takes its place.

    tries: retries that the latest request for it had behind it. refused: '' while its answer is wanted, then why not
    ('abandoned', 'sealed').
    """

    __slots__ = (
        "_changed", "_timer", "_unwanted", "delivered", "digest", "key", "refused", "retried", "rids", "task", "tries",
        "waiting",
    )  # fmt: skip

    def __init__(self, digest: Hashable, mark: Mark = FIRST_TRY) -> None:
        self.digest, self.key, self.tries = digest, mark.key, mark.tries
        self.task: asyncio.Task[list[TurnAnswer]] | None = None
        self.rids: set[str] = set()
        self.waiting = 0
        self.refused = ""
        self.delivered = False
        self.retried = False
        self._timer: asyncio.TimerHandle | None = None
        # Made when somebody waits: hundreds of calls are held for a retry that never comes.
        self._changed: asyncio.Event | None = None
        self._unwanted: asyncio.Event | None = None

    @property
    def wanted(self) -> bool:
        return not self.refused

    @property
    def unwanted(self) -> asyncio.Event:
        """Happens when nobody wants the answer any more."""
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
        """Whether a retry may have this call's answer: it is wanted, and did not fail."""
        done = self.task is not None and self.task.done()
        return self.wanted and not (done and (self.task.cancelled() or self.task.exception() is not None))

    def arrive(self) -> None:
        self.waiting += 1
        self._tell()
        self._cancel_timer()

    def leave(self, give_up: Callable[[Call], None]) -> None:
        """A client is gone before it had its answer. `give_up` runs when no retry came in time."""
        self.waiting -= 1
        if self.waiting == 0 and not self.delivered and self.wanted:
            self._timer = asyncio.get_running_loop().call_later(GRACE_SECONDS, give_up, self)

    async def claimed(self) -> None:
        """Wait until a client is there to be answered, or none will come (then `refused` says why)."""
        while not self.waiting and self.wanted:
            self._changed = asyncio.Event()
            await self._changed.wait()

    def give_up(self, reason: str) -> None:
        """Nobody wants the answer any more, because of `reason`. The first reason stands."""
        self.refused = self.refused or reason
        if self._unwanted is not None:
            self._unwanted.set()
        self._tell()
        self._cancel_timer()

    def settle(self) -> None:
        """The answer reached a client."""
        self.delivered = True
        self._cancel_timer()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class CallTable:
    """The calls of one attempt: those in flight, and the answers that a retry may ask for again.

    Calls with an Idempotency-Key are held as long as the attempt is open, others until ENDED_KEPT more have ended.
    """

    def __init__(self) -> None:
        self._flying: dict[int, Call] = {}
        self._ended: deque[Call] = deque()
        self._keyed: dict[str, Call] = {}
        self._same: dict[Hashable, list[Call]] = {}

    def __len__(self) -> int:
        """Calls in flight."""
        return len(self._flying)

    def in_flight(self) -> list[Call]:
        return [call for call in self._flying.values() if not call.task.done()]

    def find(self, digest: Hashable, mark: Mark) -> Call | None:
        """The call that this request repeats, or None when it is a call of its own.

        An Idempotency-Key decides alone. Without one, a request repeats a call with the same body whose client
        vanished; one that was tried before also repeats a call whose client has not been seen to leave, or whose
        answer went out, the latest first. As each try has its number, retries of equal calls go to a call each.

        Raises:
            Refusal: 422, the key came with another request before.
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

    def start(self, digest: Hashable, mark: Mark, serve: Callable[[Call], Awaitable[list[TurnAnswer]]]) -> Call:
        call = Call(digest, mark)
        call.task = asyncio.ensure_future(serve(call))
        self._flying[id(call)] = call
        if call.key:
            self._keyed[call.key] = call
        else:
            self._same.setdefault(digest, []).append(call)
        call.task.add_done_callback(lambda task: self._end(call, task))
        return call

    def _keyed_call(self, digest: Hashable, key: str) -> Call | None:
        call = self._keyed.get(key)
        if call is None:
            return None
        if call.digest != digest:
            raise Refusal(
                422,
                f"Idempotency-Key {key!r} came with another request of this attempt before; send a new key with a new "
                "request, and the same body with the same key",
                type="idempotency_error",
                code="idempotency_key_reused",
            )
        return call if call.repeatable else None

    def _end(self, call: Call, task: asyncio.Task[list[TurnAnswer]]) -> None:
        if not task.cancelled():
            task.exception()  # seen: when every client left, nobody awaits the task
        del self._flying[id(call)]
        if call.key:
            return
        self._ended.append(call)
        for _ in range(len(self._ended) - ENDED_KEPT):
            self._forget(self._ended.popleft())

    def _forget(self, call: Call) -> None:
        if call.orphaned and call.repeatable:  # its client is waiting, or may come back for it
            self._ended.append(call)
            return
        same = self._same[call.digest]
        same.remove(call)
        if not same:
            del self._same[call.digest]
