"""Spans of one attempt: made where things happen, written to the store in batches."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence

from slime_agl.lightning._agl import LightningStore, Span
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Turn

TURN_SPAN = "openai.chat.completion"
TURN_INDEX = "slime_agl.turn.index"
_BATCH = 64

Item = Span | Callable[[], Span]


class SpanBuffer:
    """The spans of one attempt, in the order in which they were appended.

    `append` may be called from any thread; all else runs on the store's event loop. Sequence ids
    are drawn when a batch is written, so their order is the order of appending.
    """

    def __init__(self, rollout_id: str, attempt_id: str, store: LightningStore, *, trace_id: str) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.trace_id = trace_id
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._writing = asyncio.Lock()
        self._pending: list[Item] = []
        self._written: list[Span] = []
        self._flush: asyncio.Task[None] | None = None
        self._due = False
        self._closed = False

    def append(self, item: Item) -> bool:
        """Take a span, or a function that makes it when it is written. False after close: it is not taken."""
        with self._lock:
            if self._closed:
                return False
            self._pending.append(item)
            wake = len(self._pending) >= _BATCH and not self._due
            self._due = self._due or wake
        if wake:
            self._loop.call_soon_threadsafe(self._start_flush)
        return True

    def spans(self) -> list[Span]:
        """All spans so far. Those not yet written have sequence_id 0."""
        with self._lock:
            self._pending = [_made(item) for item in self._pending]
            return [*self._written, *self._pending]

    async def close(self) -> tuple[Span, ...]:
        """Take no more, write what is left, and return all spans in the order of their sequence ids."""
        with self._lock:
            self._closed = True
        if self._flush is not None:
            await self._flush
        await self._write()
        return tuple(self._written)

    def _start_flush(self) -> None:
        self._flush = asyncio.create_task(self._write(), name=f"spans-{self.attempt_id}")

    async def _write(self) -> None:
        async with self._writing:
            with self._lock:
                items, self._pending, self._due = self._pending, [], False
            if not items:
                return
            spans = [_made(item) for item in items]
            ids = await self._store.get_many_span_sequence_ids([(self.rollout_id, self.attempt_id)] * len(spans))
            for span, sequence_id in zip(spans, ids, strict=True):
                span.sequence_id = sequence_id
            self._written.extend(await self._store.add_many_spans(spans))


def _made(item: Item) -> Span:
    return item if isinstance(item, Span) else item()


def turn_span(turn: Turn, ledger: Ledger, *, tokens: bool, trace_id: str | None = None) -> Span:
    """The span of a committed turn.

    Light by default: ids, counts, times. With `tokens` it also carries what Agent Lightning's TracerTraceToTriplet
    reads: the prompt's and the response's token ids and the logprobs. Costs the whole prompt then.
    """
    first = turn.parts[0] if turn.parts else None
    attributes: dict[str, object] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.id": turn.turn_id,
        "gen_ai.response.finish_reason": turn.finish,
        "gen_ai.request.model": turn.model,
        "gen_ai.usage.prompt_tokens": ledger.length(turn.index) - turn.output_length,
        "gen_ai.usage.completion_tokens": turn.output_length,
        "gen_ai.usage.cache_read_input_tokens": first.cached_tokens if first else 0,
        TURN_INDEX: turn.index,
        "slime_agl.turn.weight_versions": list(dict.fromkeys(part.weight_version for part in turn.parts)),
        "slime_agl.turn.engine_seconds": turn.engine_seconds,
    }
    for name, value in (("parent", turn.parent), ("fork", turn.fork), ("untrained", turn.untrained)):
        if value not in (None, ""):
            attributes[f"slime_agl.turn.{name}"] = value
    span = Span.from_attributes(
        attributes=attributes,
        rollout_id=ledger.rollout_id,
        attempt_id=ledger.attempt_id,
        name=TURN_SPAN,
        trace_id=trace_id,
        start_time=turn.started,
        end_time=turn.ended,
    )
    if tokens:
        # Put in after the span is made: its model would check every id one by one.
        span.attributes.update(_token_attributes(turn, ledger))
    return span


def _token_attributes(turn: Turn, ledger: Ledger) -> dict[str, str | Sequence[int]]:
    output = turn.output_ids()
    logprobs = [
        {"token": f"token_id:{token}", "logprob": logprob}
        for token, logprob in zip(output, turn.output_logprobs(), strict=True)
    ]
    return {
        "prompt_token_ids": list(ledger.prompt_ids(turn.index)),
        "response_token_ids": list(output),
        "logprobs.content": json.dumps(logprobs),
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.finish_reason": turn.finish,
    }
