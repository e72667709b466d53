"""Spans of attempts, from the gateway's turns and the agents' own, written to the store in batches."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from slime_agl.lightning._agl import Attributes, Span
from slime_agl.lightning.owner import Name
from slime_agl.lightning.store import ReleasingStore
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import TURN_INDEX, Turn

TURN_SPAN = "openai.chat.completion"
ANNOTATION = "agentlightning.annotation"
REWARD = "agentlightning.reward"
_BATCH = 64

Item = Span | Callable[[], Span]


class SpanBuffer:
    """The spans of one attempt, in the order in which they were appended.

    `append` may be called from any thread, everything else only on the store's event loop. Sequence ids are assigned
    when a batch is written, so they follow the order of appending.
    """

    def __init__(self, rollout_id: str, attempt_id: str, store: ReleasingStore, *, trace_id: str) -> None:
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
        """Add a span, or a function that makes it when it is written. Returns False, and adds nothing, after close."""
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
            pending = [_made(item) for item in self._pending]
            self._pending = list(pending)
            return [*self._written, *pending]

    async def close(self) -> tuple[Span, ...]:
        """Accept no more, write the rest, and return all spans ordered by sequence id."""
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
            self._written.extend(await self._store.write(self.rollout_id, self.attempt_id, spans))


def _made(item: Item) -> Span:
    return item if isinstance(item, Span) else item()


class RunningSpans:
    """The span buffers of all running attempts; receives the turns that the gateway commits.

    tokens: write token ids and logprobs into turn spans. dropped: number of spans without a running attempt.
    """

    def __init__(self, *, tokens: bool) -> None:
        self._tokens = tokens
        self._buffers: dict[Name, SpanBuffer] = {}
        self.dropped = 0

    def attach(self, buffer: SpanBuffer) -> None:
        """Make an attempt known, from before its agent starts until `detach`."""
        self._buffers[buffer.rollout_id, buffer.attempt_id] = buffer

    def detach(self, buffer: SpanBuffer) -> None:
        self._buffers.pop((buffer.rollout_id, buffer.attempt_id), None)

    def find(self, rollout_id: str, attempt_id: str) -> SpanBuffer | None:
        """The buffer of a running attempt. May be called from any thread."""
        return self._buffers.get((rollout_id, attempt_id))

    def turn_committed(self, rollout_id: str, attempt_id: str, turn: Turn, ledger: Ledger) -> None:
        """Record a turn as a span of its attempt, in order with what the agent emits. Cheap; any thread.

        The span is made later. It reads the ledger up to `turn`, so the ledger may grow meanwhile.
        """
        buffer = self.find(rollout_id, attempt_id)
        if buffer is None or not buffer.append(
            partial(turn_span, turn, ledger, tokens=self._tokens, trace_id=buffer.trace_id)
        ):
            self.dropped += 1

    def rewarded(self, rollout_id: str, attempt_id: str, value: float) -> None:
        """Record a reward that the agent posted, in order with its turns. Any thread."""
        buffer = self.find(rollout_id, attempt_id)
        if buffer is None or not buffer.append(partial(_reward_span, buffer, value, time.time())):
            self.dropped += 1


def _reward_span(buffer: SpanBuffer, value: float, moment: float) -> Span:
    return Span.from_attributes(
        attributes={f"{REWARD}.0.name": "primary", f"{REWARD}.0.value": value},
        rollout_id=buffer.rollout_id,
        attempt_id=buffer.attempt_id,
        name=ANNOTATION,
        trace_id=buffer.trace_id,
        start_time=moment,
        end_time=moment,
    )


def turn_span(turn: Turn, ledger: Ledger, *, tokens: bool, trace_id: str | None = None) -> Span:
    """Make the span of a committed turn: ids, counts and times.

    With `tokens` it also has what Agent Lightning's TracerTraceToTriplet reads: token ids of prompt and response, and
    logprobs. It then costs as much as the whole prompt.
    """
    first = turn.parts[0] if turn.parts else None
    attributes: Attributes = {
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
        # Added after construction, since validation would check every single id.
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
