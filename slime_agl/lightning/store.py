"""The store of the process: Agent Lightning's in-memory store, with removal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from slime_agl.errors import SlimeAglError
from slime_agl.lightning._agl import AttemptedRollout, InMemoryLightningStore, RolloutConfig, Span

_FINISHED = ("succeeded", "failed", "cancelled")
# The pool owns deadlines; the store's own scan would block the loop to read every running rollout.
_NO_HEALTH_SCAN_SECONDS = 10 * 365 * 86400.0
_ALL = ("rollouts", "attempts", "spans", "span_sequence_ids", "rollout_queue", "resources")


class ReleasingStore(InMemoryLightningStore):
    """Keeps only what is in use, so that memory does not grow with the length of a run.

    Owned by one event loop. Its calls never suspend, because only that loop takes the locks inside; callers may treat
    each call as atomic.
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

    async def dequeue(self, rollout_id: str, worker_id: str) -> AttemptedRollout | None:
        """Take a rollout from anywhere in the queue; None if it is not queued."""
        async with self.collections.atomic(mode="rw", labels=_ALL) as tables:
            queue = tables.rollout_queue._items
            if rollout_id not in queue:
                return None
            queue.remove(rollout_id)
            queue.appendleft(rollout_id)
        return await self.dequeue_rollout(worker_id=worker_id)

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
