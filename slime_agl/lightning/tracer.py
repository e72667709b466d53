"""The tracer of the process, which routes each span to the attempt that emitted it."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.lightning._agl import (
    Attributes,
    DummySpanRecordingContext,
    LightningStore,
    Span,
    SpanCoreFields,
    Tracer,
    TraceStatus,
    clear_active_tracer,
    get_active_tracer,
    set_active_tracer,
)
from slime_agl.lightning.spans import RunningSpans, SpanBuffer

logger = logging.getLogger(__name__)

_current: ContextVar[SpanBuffer | None] = ContextVar("slime_agl_current_attempt", default=None)
_latest: ContextVar[SpanBuffer | None] = ContextVar("slime_agl_latest_attempt", default=None)
_operation: ContextVar[str | None] = ContextVar("slime_agl_current_operation", default=None)


class RoutingTracer(Tracer):
    """Agent Lightning's active tracer while a pool runs.

    A context variable identifies the attempt, so everything that its context reaches is attributed: its task, the
    tasks and `asyncio.to_thread` calls that it starts, and the thread of a threaded agent.
    A span from elsewhere, or from an attempt that is over, is dropped and counted in `spans.dropped`.
    """

    def __init__(self, *, tokens: bool = False) -> None:
        super().__init__()
        self.spans = RunningSpans(tokens=tokens)
        self._warned = False

    def install(self) -> None:
        """Become the active tracer of the process.

        Raises:
            ConfigError: another tracer is active.
        """
        active = get_active_tracer()
        if active is not None:
            raise ConfigError(
                f"{type(active).__name__} is already Agent Lightning's active tracer in this process; "
                "end its trace (or close the other runtime) before this one starts"
            )
        set_active_tracer(self)

    def uninstall(self) -> None:
        if get_active_tracer() is self:
            clear_active_tracer()

    def init_worker(self, worker_id: int, store: LightningStore | None = None) -> None:
        """No-op: spans reach the store through the attempt's buffer."""

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[RoutingTracer]:
        """Attribute what the enclosed code emits to an attempt; without ids, to the current one.

        Raises:
            SlimeAglError: the attempt was never attached.
        """
        buffer = _current.get()
        if rollout_id is not None or attempt_id is not None:
            buffer = self.spans.find(rollout_id or "", attempt_id or "")
            if buffer is None:
                raise SlimeAglError(f"attempt {attempt_id} of rollout {rollout_id} is not running in this process")
        token = _current.set(buffer)
        # Not reset: the runner reads the trace after leaving the context.
        _latest.set(buffer)
        try:
            yield self
        finally:
            _current.reset(token)

    def get_last_trace(self) -> list[Span]:
        """The spans of the attempt whose trace context this task entered last."""
        buffer = _latest.get()
        return buffer.spans() if buffer is not None else []

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        moment = time.time() if timestamp is None else timestamp
        core = SpanCoreFields(
            name=name,
            attributes=dict(attributes or {}),
            start_time=moment,
            end_time=moment,
            status=status or TraceStatus(status_code="OK"),
        )
        self._route(core, span_id=None, parent_id=_operation.get())
        return core

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Iterator[DummySpanRecordingContext]:
        recording = DummySpanRecordingContext(name, dict(attributes or {}), start_time)
        span_id, parent_id = secrets.token_hex(8), _operation.get()
        token = _operation.set(span_id)
        try:
            yield recording
        except Exception as error:
            # The operation records its failure; the error itself goes to the caller.
            recording.record_exception(error)
            raise
        finally:
            _operation.reset(token)
            recording.finalize(end_time)
            self._route(recording.get_recorded_span(), span_id=span_id, parent_id=parent_id)

    def get_langchain_handler(self) -> None:
        """No handler: the gateway records turns, whatever the framework."""
        return None

    def _route(self, core: SpanCoreFields, *, span_id: str | None, parent_id: str | None) -> None:
        buffer = _current.get()
        if buffer is None:
            self._drop(core.name)
            return
        span = Span.from_attributes(
            attributes=core.attributes,
            rollout_id=buffer.rollout_id,
            attempt_id=buffer.attempt_id,
            name=core.name,
            trace_id=buffer.trace_id,
            span_id=span_id,
            parent_id=parent_id,
            start_time=core.start_time,
            end_time=core.end_time,
            status=core.status,
        )
        if not buffer.append(span):
            # The attempt is over, but its agent was left behind and still emits.
            self.spans.dropped += 1

    def _drop(self, name: str) -> None:
        self.spans.dropped += 1
        if not self._warned:
            self._warned = True
            logger.warning(
                "span %r was emitted outside any attempt and is dropped (later ones are only counted); "
                "a thread started by an agent emits into its attempt when run with contextvars.copy_context().run",
                name,
            )
