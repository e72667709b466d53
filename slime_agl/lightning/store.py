"""The store of the process: Agent Lightning's in-memory store, with removal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from slime_agl.errors import SlimeAglError
from slime_agl.lightning._agl import (
    Attempt,
    AttemptedRollout,
    Event,
    InMemoryLightningStore,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Span,
    Worker,
    generate_id,
)
from slime_agl.lightning.outcome import SUCCEEDED, Lane

logger = logging.getLogger(__name__)

_FINISHED = ("succeeded", "failed", "cancelled")
# The pool owns deadlines; the store's own scan would block the loop to read every running rollout.
_NO_HEALTH_SCAN_SECONDS = 10 * 365 * 86400.0
_ALL = ("rollouts", "attempts", "spans", "span_sequence_ids", "rollout_queue", "resources")


class ReleasingStore(InMemoryLightningStore):
    """Keeps only what is in use, so that memory does not grow with the length of a run.

    Owned by one event loop. Its calls never suspend, because only that loop takes the locks inside; callers may treat
    each call as atomic.

    What every execution does with the store (`enqueue`, `dequeue`, `run`, `succeed`, `write`, `snapshot`, `status`)
    goes straight to the tables. Upstream's own methods do the same through locks, queries and copies that are made for
    any database, and cost 1,390 us of CPU per execution of four turns, of 3,400 us outside the gateway; these cost 110
    us. They leave the tables as upstream's do, which a test compares.
    """

    def __init__(self) -> None:
        super().__init__(
            thread_safe=False, scan_debounce_seconds=_NO_HEALTH_SCAN_SECONDS, span_size_estimator=span_bytes
        )

    async def forget(self, rollout_ids: Iterable[str]) -> None:
        """Remove rollouts with their attempts, spans and counters, each at the cost of its own size.

        Unknown ids are ignored.

        Raises:
            SlimeAglError: a rollout has not finished.
        """
        async with self.collections.atomic(mode="rw", labels=_ALL) as tables:
            for rollout_id in rollout_ids:
                rollout = await tables.rollouts.get({"rollout_id": {"exact": rollout_id}})
                if rollout is None:
                    continue
                if rollout.status not in _FINISHED:
                    raise SlimeAglError(
                        f"rollout {rollout_id} is {rollout.status} and cannot be forgotten; "
                        "wait for it or cancel it first"
                    )
                await tables.rollouts.delete([rollout])
                _drop(tables.attempts, rollout_id, depth=1)
                _drop(tables.spans, rollout_id, depth=2)
                await tables.span_sequence_ids.pop(rollout_id)
                self._forget_accounts(rollout_id)

    def _forget_accounts(self, rollout_id: str) -> None:
        self._total_span_bytes -= self._span_bytes_by_rollout.pop(rollout_id, 0)
        self._start_time_by_rollout.pop(rollout_id, None)
        self._completion_events.pop(rollout_id, None)
        self._running_rollout_ids.discard(rollout_id)
        self._evicted_rollout_span_sets.discard(rollout_id)

    async def forget_resources(self, resources_id: str) -> None:
        """Remove a snapshot of resources. An unknown id is ignored."""
        async with self.collections.atomic(mode="rw", labels=_ALL) as tables:
            snapshot = await tables.resources.get({"resources_id": {"exact": resources_id}})
            if snapshot is not None:
                await tables.resources.delete([snapshot])
            if self._latest_resources_id == resources_id:
                self._latest_resources_id = None

    def enqueue(self, task: object, *, mode: Lane, resources_id: str, config: RolloutConfig) -> str:
        """Queue a rollout; return its id. config: not copied."""
        now, rollout_id = time.time(), f"ro-{generate_id(12)}"
        self.collections.rollout_queue._items.append(rollout_id)
        self._insert(
            self.collections.rollouts,
            Rollout(
                rollout_id=rollout_id,
                input=task,
                mode=mode,
                resources_id=resources_id,
                start_time=now,
                status="queuing",
                config=config,
                metadata={},
            ),
            rollout_id,
        )
        self._completion_events[rollout_id] = Event()
        self._start_time_by_rollout[rollout_id] = now
        return rollout_id

    def dequeue(self, rollout_id: str, worker_id: str) -> AttemptedRollout | None:
        """Take a rollout from anywhere in the queue and begin its next attempt; None if it is not queued.

        The agent gets a copy of the task.
        """
        tables, now = self.collections, time.time()
        try:
            tables.rollout_queue._items.remove(rollout_id)
        except ValueError:
            return None
        attempt = Attempt(
            rollout_id=rollout_id,
            attempt_id=f"at-{generate_id(8)}",
            sequence_id=len(tables.attempts._items.get(rollout_id, ())) + 1,
            start_time=now,
            status="preparing",
            worker_id=worker_id,
        )
        self._insert(tables.attempts, attempt, rollout_id, attempt.attempt_id)
        rollout: Rollout = tables.rollouts._items[rollout_id]
        rollout.status = "preparing"
        self._running_rollout_ids.add(rollout_id)
        self._busy(attempt, now).last_dequeue_time = now
        return AttemptedRollout(**rollout.model_dump(), attempt=attempt)

    def run(self, rollout_id: str, attempt_id: str) -> None:
        """Note that an attempt, its rollout's latest, begins to run."""
        attempt: Attempt = self.collections.attempts._items[rollout_id][attempt_id]
        attempt.status = self.collections.rollouts._items[rollout_id].status = "running"
        self._busy(attempt, time.time())

    def succeed(self, rollout_id: str, attempt_id: str) -> None:
        """End an attempt, its rollout's latest, and the rollout with it."""
        now = time.time()
        attempt: Attempt = self.collections.attempts._items[rollout_id][attempt_id]
        rollout: Rollout = self.collections.rollouts._items[rollout_id]
        attempt.status = rollout.status = SUCCEEDED
        attempt.end_time = rollout.end_time = now
        self._running_rollout_ids.discard(rollout_id)
        self._completion_events[rollout_id].set()
        worker = self._worker(attempt)
        worker.last_idle_time, worker.status = now, "idle"
        worker.current_rollout_id = worker.current_attempt_id = None

    async def write(self, rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> list[Span]:
        """Number the spans of a running attempt in order and add them; return those added.

        A span whose id the attempt already has is left out.
        """
        tables = self.collections
        held = tables.spans._items.setdefault(rollout_id, {}).setdefault(attempt_id, {})
        last, added = tables.span_sequence_ids._values.get(rollout_id, 0), []
        tables.span_sequence_ids._values[rollout_id] = last + len(spans)
        for number, span in enumerate(spans, last + 1):
            span.sequence_id = number
            if span.span_id in held:
                logger.error("attempt %s of rollout %s has two spans %s", attempt_id, rollout_id, span.span_id)
                continue
            held[span.span_id] = span
            added.append(span)
        tables.spans._size += len(added)
        size = sum(map(span_bytes, added))
        self._span_bytes_by_rollout[rollout_id] += size
        self._total_span_bytes += size
        tables.attempts._items[rollout_id][attempt_id].last_heartbeat_time = time.time()
        await self._maybe_evict_spans(tables)
        return added

    def snapshot(self, resources_id: str) -> ResourcesUpdate | None:
        """Resources by their id, if they are held; not a copy."""
        return self.collections.resources._items.get(resources_id)

    def status(self, rollout_id: str) -> str:
        """Status of a rollout that the store holds."""
        return self.collections.rollouts._items[rollout_id].status

    def _busy(self, attempt: Attempt, now: float) -> Worker:
        """Note that the worker of an attempt works on it."""
        worker = self._worker(attempt)
        worker.last_busy_time, worker.status = now, "busy"
        worker.current_rollout_id, worker.current_attempt_id = attempt.rollout_id, attempt.attempt_id
        return worker

    def _worker(self, attempt: Attempt) -> Worker:
        workers, name = self.collections.workers, attempt.worker_id or ""
        if name not in workers._items:
            self._insert(workers, Worker(worker_id=name), name)
        return workers._items[name]

    @staticmethod
    def _insert(collection: Any, item: object, *keys: str) -> None:
        branch = collection._items
        for key in keys[:-1]:
            branch = branch.setdefault(key, {})
        branch[keys[-1]] = item
        collection._size += 1

    async def withdraw(self, rollout_id: str) -> None:
        """Cancel a queued rollout; no runner will get it."""
        async with self.collections.atomic(mode="rw", labels=_ALL) as tables:
            tables.rollout_queue._items.remove(rollout_id)
        await self.update_rollout(rollout_id, status="cancelled")

    async def forbid_retry(self, rollout_id: str) -> None:
        """Make the running attempt of a rollout its last one."""
        await self.update_rollout(rollout_id, config=RolloutConfig(max_attempts=1))

    async def cancel_attempt(self, rollout_id: str, attempt_id: str) -> None:
        """End a running attempt and its rollout, without requeuing it."""
        await self.forbid_retry(rollout_id)
        await self.update_attempt(rollout_id, attempt_id, status="failed", metadata={"cancelled": True})
        await self.update_rollout(rollout_id, status="cancelled")


def span_bytes(span: Span) -> int:
    """Estimate a span's memory from its attributes, without visiting each token id."""
    total = 2048
    for value in span.attributes.values():
        total += sys.getsizeof(value) + (32 * len(value) if isinstance(value, (list, tuple)) else 0)
    return total


def _drop(collection: Any, rollout_id: str, *, depth: int) -> None:
    """Remove everything below a rollout id, including the branch itself, and correct the size.

    Upstream's public `delete` leaves the empty branch behind, and its eviction leaves the size uncorrected.
    """
    branch = collection._items.pop(rollout_id, {})
    collection._size -= len(branch) if depth == 1 else sum(len(leaf) for leaf in branch.values())
