"""A rollout in a store whose runners are other processes: its attempts, their sessions and its outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

from slime_agl.errors import RunnerError
from slime_agl.lightning._agl import Attempt, AttemptedRollout, LightningStore, Rollout, Span
from slime_agl.lightning.outcome import (
    CANCELLED,
    FAILED,
    SUCCEEDED,
    TIMEOUT,
    AttemptOutcome,
    Lane,
    RolloutOutcome,
    Status,
)
from slime_agl.lightning.rewards import in_order, rewards_of
from slime_agl.lightning.side import Port
from slime_agl.lightning.turn_spans import TurnSink, TurnSpans

OVER = frozenset({"succeeded", "failed", "timeout", "unresponsive"})
SUPERSEDED = "a later attempt took its place"
WITHDRAWN = "withdrawn"
LOST = RunnerError.__name__
# A reward that its runner's exporter delivers behind the end of its attempt.
LATE_SECONDS = (0.1, 0.3, 0.6, 1.0)

Admission = Literal["open", "unknown", "wrong_key", "over", "unreachable"]


class OpenAttempt:
    """An attempt that has a session, or had one. sealed: the session's end, once it is sealed."""

    def __init__(self, attempt_id: str, spans: TurnSpans) -> None:
        self.attempt_id, self.spans = attempt_id, spans
        self.is_sealed = False
        self.sealed: Any = None


class OpenRollout:
    """A rollout that a caller waits for. Belongs to the store's event loop.

    done: its outcome. parked_seconds: time in which its lane was paused. lost: attempts whose runner is gone.
    """

    def __init__(
        self, rollout_id: str, *, lane: Lane, port: Port, max_attempts: int, store: LightningStore, sink: TurnSink
    ) -> None:
        self.rollout_id, self.lane, self.port, self.max_attempts = rollout_id, lane, port, max_attempts
        self._store, self._sink = store, sink
        self._attempts: dict[str, OpenAttempt] = {}
        self._lock = asyncio.Lock()
        self.ending = False
        self.parked_seconds = 0.0
        self.lost: set[str] = set()
        self.done: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())

    def attempt(self, attempt_id: str) -> OpenAttempt | None:
        return self._attempts.get(attempt_id)

    async def admit(self, attempt_id: str, may_enter: Callable[[str], bool]) -> Admission:
        """Open the session of an attempt that has sent its first request; see the gateway's Doorman."""
        if not may_enter(self.port.key):
            return "wrong_key"
        async with self._lock:
            known = self._attempts.get(attempt_id)
            if known is not None:
                return "over" if known.is_sealed else "open"
            if self.ending:
                return "over"
            try:
                attempts = await self._store.query_attempts(self.rollout_id)
            except Exception:  # the store's client raises whatever its HTTP library raises
                return "unreachable"
            found = next((attempt for attempt in attempts if attempt.attempt_id == attempt_id), None)
            if found is None:
                return "unknown"
            if found.attempt_id != attempts[-1].attempt_id or found.status in OVER:
                return "over"
            await self._seal_all()
            await self._open(attempt_id)
            return "open"

    async def seal(self) -> None:
        """Refuse the calls of all attempts from now on, and let no further one in. Idempotent."""
        self.ending = True
        async with self._lock:
            await self._seal_all()

    async def finish(self, found: Rollout) -> bool:
        """Complete `done` if the rollout has ended; False if the store or the failure policy runs it again.

        found: as the store has just told it.

        Raises: whatever the store or the port raises.
        """
        async with self._lock:
            if self.done.done():
                return True
            rollout, attempts = await self._told(found)
            if rollout is None or rollout.status not in ("succeeded", "failed", "cancelled"):
                return False
            await self._seal_all()
            for attempt in attempts:
                if attempt.attempt_id not in self._attempts:  # it made no call
                    await self._open(attempt.attempt_id)
                    await self._seal_all()
            ends = [await self._outcome(attempt, attempts[-1], rollout.status) for attempt in attempts]
            if not ends:
                ends = [await self._withdrawn()]
            last = ends[-1]
            again = last.status != CANCELLED and len(ends) < self.max_attempts
            if again and self.port.may_retry(last.sealed, last.status, last.error_type or ""):
                await self._store.update_rollout(self.rollout_id, status="requeuing")
                return False
            self.ending = True
            self.done.set_result(RolloutOutcome(self.rollout_id, tuple(ends)))
            return True

    async def _told(self, found: Rollout) -> tuple[Rollout | None, list[Attempt]]:
        """The rollout and its attempts; asks the store unless what it has told shows the only one."""
        if isinstance(found, AttemptedRollout) and found.attempt.sequence_id == 1:
            if self._attempts.keys() <= {found.attempt.attempt_id}:
                return found, [found.attempt]
        rollout = await self._store.get_rollout_by_id(self.rollout_id)
        return rollout, list(await self._store.query_attempts(self.rollout_id))

    def forget(self) -> None:
        """Take no more turns."""
        for attempt_id in self._attempts:
            self._sink.detach((self.rollout_id, attempt_id))

    async def _open(self, attempt_id: str) -> None:
        name = (self.rollout_id, attempt_id)
        opened = OpenAttempt(attempt_id, TurnSpans(name, self._store))
        self._sink.attach(name, opened.spans)
        self.port.began()
        await self.port.open(*name)
        self._attempts[attempt_id] = opened

    async def _seal_all(self) -> None:
        for attempt in self._attempts.values():
            if not attempt.is_sealed:
                attempt.is_sealed = True
                attempt.sealed = await self.port.seal(self.rollout_id, attempt.attempt_id)

    async def _outcome(self, attempt: Attempt, last: Attempt, rollout_status: str) -> AttemptOutcome:
        opened = self._attempts[attempt.attempt_id]
        # The gateway has committed the last turn; its span is on its way through this loop.
        await asyncio.sleep(0)
        await opened.spans.write()
        status = attempt.status if attempt is last or attempt.status in OVER - {"succeeded"} else "superseded"
        spans = await self._spans(attempt.attempt_id, patient=status == "succeeded")
        error, error_type = _failure(status, attempt, spans, rollout_status, lost=attempt.attempt_id in self.lost)
        try:
            rewards = rewards_of(spans)
        except ValueError as unreadable:
            # An unreadable or non-finite reward is the agent's failure, unless it has failed already.
            rewards = ()
            error, error_type = error or str(unreadable), error_type or type(unreadable).__name__
        named: Status = TIMEOUT if status == "timeout" else FAILED if error else SUCCEEDED
        if rollout_status == "cancelled" and attempt is last:
            named = CANCELLED
        return AttemptOutcome(
            rollout_id=self.rollout_id,
            attempt_id=attempt.attempt_id,
            status=named,
            error=error,
            error_type=error_type,
            error_code=self.port.cut_by(opened.sealed) if named == FAILED else "",
            rewards=rewards,
            spans=tuple(spans),
            started=attempt.start_time,
            ended=attempt.end_time or time.time(),
            sealed=opened.sealed,
        )

    async def _spans(self, attempt_id: str, *, patient: bool) -> list[Span]:
        """The spans of an attempt in order. patient: wait a little for a reward that is on its way."""
        spans = list(await self._store.query_spans(self.rollout_id, attempt_id))
        for seconds in LATE_SECONDS if patient else ():
            if any(_is_reward(span) for span in spans):
                break
            await asyncio.sleep(seconds)
            spans = list(await self._store.query_spans(self.rollout_id, attempt_id))
        return in_order(spans)

    async def _withdrawn(self) -> AttemptOutcome:
        """The outcome of a rollout that was cancelled in the store before a runner took it."""
        await self._open(WITHDRAWN)
        await self._seal_all()
        moment = time.time()
        return AttemptOutcome(
            rollout_id=self.rollout_id,
            attempt_id=WITHDRAWN,
            status=CANCELLED,
            error="the rollout was cancelled in the store before a runner took it",
            error_type="CancelledError",
            rewards=(),
            spans=(),
            started=moment,
            ended=moment,
            sealed=self._attempts[WITHDRAWN].sealed,
        )


def _is_reward(span: Span) -> bool:
    return any(name.startswith("agentlightning.reward") for name in span.attributes)


def _failure(
    status: str, attempt: Attempt, spans: list[Span], rollout_status: str, *, lost: bool
) -> tuple[str | None, str | None]:
    """The error of an attempt and its type, None for one that succeeded."""
    runner = attempt.worker_id or "its runner"
    if rollout_status == "cancelled":
        return "the rollout was cancelled in the store", "CancelledError"
    if status == "succeeded":
        return None, None
    if status == "superseded":
        return SUPERSEDED, "Superseded"
    if status == "timeout":
        return "the agent ran longer than agl.runners.timeout_seconds allows", "TimeoutError"
    if status == "unresponsive" or lost:
        return f"{runner} stopped before its agent ended: its process died, or cannot reach the store", LOST
    found = _exception(spans)
    if found is not None:
        return found
    return f"the agent failed in {runner}, whose log has the traceback", "AgentFailed"


def _exception(spans: list[Span]) -> tuple[str, str] | None:
    """Traceback and type of the last exception that the agent's tracer recorded."""
    for span in reversed(spans):
        for attributes in (*(event.attributes or {} for event in reversed(span.events)), span.attributes):
            message = attributes.get("exception.stacktrace") or attributes.get("exception.message")
            if message:
                return str(message), str(attributes.get("exception.type", "AgentFailed")).rpartition(".")[2]
    return None
