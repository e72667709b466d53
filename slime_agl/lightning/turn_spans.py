"""Turns of the gateway as spans of attempts whose other spans are written elsewhere."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable

from slime_agl.lightning._agl import LightningStore, Span
from slime_agl.lightning.owner import Name
from slime_agl.lightning.spans import turn_span
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Turn

logger = logging.getLogger(__name__)

NUMBER_SECONDS = 10.0


class TurnSpans:
    """The turns of one attempt, written to the store with places that were reserved when their requests arrived.

    A turn's place lies before all that its agent emits once it has the answer. Belongs to the store's event loop.
    """

    def __init__(self, name: Name, store: LightningStore) -> None:
        self._name, self._store = name, store
        self._places: deque[int] = deque()
        self._pending: deque[Callable[[], Span]] = deque()
        self._writing = asyncio.Lock()
        self._reserving = 0
        self._reserved = asyncio.Event()
        self.in_flight = 0
        self.written = 0

    async def number(self, turns: int) -> None:
        """Reserve places. Does not raise: without them, turns take the next ones when they are written."""
        self.in_flight += 1
        self._reserving += 1
        try:
            async with asyncio.timeout(NUMBER_SECONDS):
                self._places.extend(await self._store.get_many_span_sequence_ids([self._name] * turns))
        except Exception as error:  # the store's client raises whatever its HTTP library raises
            logger.warning("no places for the turns of attempt %s: %s: %s", self._name[1], type(error).__name__, error)
        finally:
            self._reserving -= 1
            self._reserved.set()

    def left(self) -> None:
        self.in_flight -= 1

    def add(self, make: Callable[[], Span]) -> None:
        self._pending.append(make)

    async def write(self) -> None:
        """Write what has been added. Raises whatever the store raises; what it did not take is kept."""
        async with self._writing:
            while self._pending:
                span = self._pending[0]()
                # A turn may be faster than its place, which must not be left to the next turn.
                while not self._places and self._reserving:
                    self._reserved.clear()
                    await self._reserved.wait()
                if not self._places:
                    self._places.extend(await self._store.get_many_span_sequence_ids([self._name]))
                span.sequence_id = self._places[0]
                await self._store.add_many_spans([span])
                self._places.popleft()
                self._pending.popleft()
                self.written += 1


class TurnSink:
    """Takes the turns that the gateway commits, on any thread, to the attempts of `loop`. tokens: see `turn_span`."""

    def __init__(self, *, tokens: bool) -> None:
        self._tokens = tokens
        self._attempts: dict[Name, TurnSpans] = {}
        self._traces: dict[Name, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.dropped = 0
        self.failed = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def attach(self, name: Name, spans: TurnSpans) -> None:
        self._traces[name] = secrets.token_hex(16)
        self._attempts[name] = spans

    def detach(self, name: Name) -> None:
        self._attempts.pop(name, None)
        self._traces.pop(name, None)

    def turn_committed(self, rollout_id: str, attempt_id: str, turn: Turn, ledger: Ledger) -> None:
        """Record a turn. Cheap; the span is made and written later, on the loop."""
        trace_id = self._traces.get((rollout_id, attempt_id))
        if self._loop is None or trace_id is None:
            self.dropped += 1
            return
        self._loop.call_soon_threadsafe(
            self._take,
            (rollout_id, attempt_id),
            lambda: turn_span(turn, ledger, tokens=self._tokens, trace_id=trace_id),
        )

    def rewarded(self, rollout_id: str, attempt_id: str, value: float) -> None:
        """No-op: agents of other processes give their rewards to the store."""
        self.dropped += 1

    def _take(self, name: Name, make: Callable[[], Span]) -> None:
        spans = self._attempts.get(name)
        if spans is None:
            self.dropped += 1
            return
        spans.add(make)
        task = asyncio.ensure_future(self._write(spans))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, spans: TurnSpans) -> None:
        try:
            await spans.write()
        except Exception:  # as in `number`; written again with the next turn, or at the end of the attempt
            self.failed += 1
