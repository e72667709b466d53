"""A view of the store for the runner of one attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slime_agl.lightning._agl import (
    Attempt,
    AttemptedRollout,
    LightningStore,
    ProxyLLM,
    Resource,
    ResourcesUpdate,
    Rollout,
    Span,
)
from slime_agl.lightning.spans import SpanBuffer
from slime_agl.lightning.store import ReleasingStore


class StoreView(LightningStore):
    """Gives LitAgentRunner exactly one attempt, with the attempt's own key, and collects its spans.

    The attempt already exists in the store; starting a rollout returns it. The status that the runner reports is
    ignored, since a cancelled runner reports success; RunningAttempt knows better.
    """

    def __init__(
        self,
        store: ReleasingStore,
        buffer: SpanBuffer,
        attempted: AttemptedRollout,
        *,
        api_key: str,
    ) -> None:
        self._store = store
        self._buffer = buffer
        self._attempted = attempted
        self._api_key = api_key

    async def start_rollout(self, input: object, *args: object, **kwargs: object) -> AttemptedRollout:
        return self._attempted

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        return self._attempted

    async def update_attempt(self, rollout_id: str, attempt_id: str, *args: object, **kwargs: object) -> Attempt:
        return self._attempted.attempt

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return self._own(self._store.snapshot(resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return self._own(await self._store.get_latest_resources())

    def _own(self, snapshot: ResourcesUpdate | None) -> ResourcesUpdate | None:
        """Copy the snapshot, with this attempt's key in every ProxyLLM, so that agents share nothing mutable."""
        if snapshot is None:
            return None
        return snapshot.model_copy(
            update={"resources": {name: self._keyed(resource) for name, resource in snapshot.resources.items()}}
        )

    def _keyed(self, resource: Resource) -> Resource:
        if not isinstance(resource, ProxyLLM):
            return resource.model_copy(deep=True)
        return resource.model_copy(
            update={"api_key": self._api_key, "sampling_parameters": dict(resource.sampling_parameters)}
        )

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """A placeholder: the buffer assigns sequence ids when it writes."""
        return 0

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        return [0] * len(rollout_attempt_ids)

    async def add_span(self, span: Span) -> Span | None:
        """Add a span that the agent returned; whatever its ids, it belongs to this attempt."""
        own = span.model_copy(update={"rollout_id": self._buffer.rollout_id, "attempt_id": self._buffer.attempt_id})
        return own if self._buffer.append(own) else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        added = [await self.add_span(span) for span in spans]
        return [span for span in added if span is not None]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0))
