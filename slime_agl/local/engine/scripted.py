"""A Backend that answers from a script: instant, deterministic, without torch. It records every exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slime_agl.errors import EngineError
from slime_agl.local.engine.backend import BackendInfo, Deliver, Finish, Generated, GenerateRequest, Load
from slime_agl.local.engine.base import BackendBase


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """The script's answer to one request.

    ids: output ids, cut at `max_new_tokens` (the finish is then 'length'). finish: 'stop', 'length' or 'abort'.
    matched: stop id or string; None with finish 'stop' means the last id.
    logprobs: one per id; None means `synthetic_logprob`.
    hold: keep the request pending until `ScriptedBackend.release`; if aborted first, it answers with the first
        `partial` ids. status: answer with this HTTP status instead. meta: further fields of `meta_info`.
    """

    ids: Sequence[int] = ()
    finish: str = "stop"
    matched: int | str | None = None
    logprobs: Sequence[float] | None = None
    cached_tokens: int = 0
    hold: bool = False
    partial: int = 0
    status: int | None = None
    meta: Mapping[str, object] = field(default_factory=dict)


AnswerScript = Callable[[GenerateRequest], ScriptedReply]


@dataclass(slots=True)
class ScriptedExchange:
    """A request as it arrived, and its answer (None while it runs)."""

    request: GenerateRequest
    answer: Generated | EngineError | None = None


def synthetic_logprob(position: int, token: int) -> float:
    """Return a logprob in [-1, 0) that depends on the token and its position in the output."""
    return -(1 + (31 * token + 17 * position) % 1000) / 1000


class Text(Protocol):
    """Encodes and decodes text; a Renderer is one."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class NumberText:
    """Writes ids as decimal numbers separated by spaces, and reads them back."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


class ScriptedBackend(BackendBase):
    """script: a function of the request, or replies in order of arrival.

    text: `NumberText` by default. exchanges: all requests in order of arrival.
    Requests that arrive during a pause wait, and reach the script when generation continues.
    """

    def __init__(
        self,
        script: AnswerScript | Iterable[ScriptedReply],
        *,
        text: Text | None = None,
        context_length: int = 32_768,
        vocab_size: int = 1 << 20,
        model_path: str = "",
        weight_version: str = "default",
    ) -> None:
        super().__init__(BackendInfo(model_path, context_length, vocab_size, max_running=1_000), weight_version)
        self._script = script if callable(script) else _in_order(script)
        self._text = text or NumberText()
        self._changed = threading.Condition(threading.RLock())
        self._paused = False
        self._waiting: dict[str, tuple[ScriptedExchange, Deliver]] = {}
        self._pending: dict[str, tuple[ScriptedExchange, Deliver, ScriptedReply]] = {}
        self.exchanges: list[ScriptedExchange] = []
        self.loaded_paths: list[str] = []
        self.flushes = 0

    @property
    def healthy(self) -> bool:
        return True

    def start(self) -> None:
        """Nothing to start: replies are made on the caller's thread."""

    def close(self) -> None:
        self.abort(None)

    def encode(self, text: str) -> list[int]:
        return self._text.encode(text)

    def submit(self, request: GenerateRequest, deliver: Deliver) -> None:
        with self._changed:
            exchange = ScriptedExchange(request)
            self.exchanges.append(exchange)
            if self._paused:
                self._waiting[request.rid] = (exchange, deliver)
                self._changed.notify_all()
            else:
                self._meet(exchange, deliver)

    def abort(self, rid: str | None) -> None:
        with self._changed:
            for key in [key for key in self._waiting if rid in (None, key)]:
                exchange, deliver = self._waiting.pop(key)
                self._end(exchange, deliver, self._generated(exchange, ScriptedReply(finish="abort")))
            for key in [key for key in self._pending if rid in (None, key)]:
                exchange, deliver, reply = self._pending.pop(key)
                partial = ScriptedReply(reply.ids[: reply.partial], finish="abort", logprobs=reply.logprobs)
                self._end(exchange, deliver, self._generated(exchange, partial))

    def pause(self, kind: str) -> None:
        with self._changed:
            self._paused = True
            if kind == "abort":
                self.abort(None)

    def resume(self) -> None:
        with self._changed:
            self._paused = False
            waiting, self._waiting = self._waiting, {}
            for exchange, deliver in waiting.values():
                self._meet(exchange, deliver)

    def flush_cache(self) -> bool:
        with self._changed:
            if self._pending:
                return False
            self.flushes += 1
            return True

    def update_weights(self, path: str, weight_version: str) -> None:
        with self._changed:
            self.loaded_paths.append(path)
            self._weight_version = weight_version

    def load(self) -> Load:
        with self._changed:
            return Load(len(self._pending), len(self._waiting))

    def release(self, rid: str | None = None) -> None:
        """Answer a pending request, or all, in full."""
        with self._changed:
            for key in [key for key in self._pending if rid in (None, key)]:
                exchange, deliver, reply = self._pending.pop(key)
                self._end(exchange, deliver, self._generated(exchange, reply))

    def wait_until(self, *, pending: int = 0, waiting: int = 0, arrived: int = 0, timeout: float = 10.0) -> None:
        """Block until that many requests are pending, wait for the end of a pause, and have arrived.

        Raises:
            TimeoutError: with the numbers reached.
        """

        def reached() -> bool:
            counts = (len(self._pending), len(self._waiting), len(self.exchanges))
            return all(have >= want for have, want in zip(counts, (pending, waiting, arrived), strict=True))

        with self._changed:
            if not self._changed.wait_for(reached, timeout):
                raise TimeoutError(
                    f"after {timeout} s: {len(self._pending)} of {pending} requests pending, {len(self._waiting)} of "
                    f"{waiting} waiting, {len(self.exchanges)} of {arrived} arrived"
                )

    def wait_until_answered(self, count: int, timeout: float = 10.0) -> None:
        """Block until that many requests have ended in any way. Raises TimeoutError with the number reached."""

        def answered() -> int:
            return sum(exchange.answer is not None for exchange in self.exchanges)

        with self._changed:
            if not self._changed.wait_for(lambda: answered() >= count, timeout):
                raise TimeoutError(f"after {timeout} s: {answered()} of {count} requests answered")

    def _meet(self, exchange: ScriptedExchange, deliver: Deliver) -> None:
        reply = self._script(exchange.request)
        if reply.status is not None:
            error = EngineError(f"the script answers {reply.status}", status=reply.status)
            self._end(exchange, deliver, error)
        elif reply.hold:
            self._pending[exchange.request.rid] = (exchange, deliver, reply)
            self._changed.notify_all()
        else:
            self._end(exchange, deliver, self._generated(exchange, reply))

    def _end(self, exchange: ScriptedExchange, deliver: Deliver, answer: Generated | EngineError) -> None:
        exchange.answer = answer
        self._changed.notify_all()
        deliver(answer)

    def _generated(self, exchange: ScriptedExchange, reply: ScriptedReply) -> Generated:
        request = exchange.request
        limit = request.sampling.max_new_tokens
        ids = tuple(reply.ids[:limit])
        if reply.logprobs is None:
            logprobs = tuple(synthetic_logprob(position, token) for position, token in enumerate(ids))
        else:
            logprobs = tuple(reply.logprobs[: len(ids)])
        return Generated(
            output_ids=ids,
            logprobs=logprobs,
            text=self._text.decode(ids),
            prompt_tokens=len(request.input_ids),
            weight_version=self._weight_version,
            finish=_finish(reply, ids, cut=len(reply.ids) > limit),
            cached_tokens=reply.cached_tokens,
            meta=reply.meta,
        )


def _finish(reply: ScriptedReply, ids: Sequence[int], *, cut: bool) -> Finish:
    if reply.finish == "abort":
        return Finish("abort", message="aborted on request")
    if cut or reply.finish == "length":
        return Finish("length")
    matched = ids[-1] if reply.matched is None and ids else reply.matched
    return Finish("stop", matched=matched)


def _in_order(replies: Iterable[ScriptedReply]) -> AnswerScript:
    remaining = iter(replies)

    def script(request: GenerateRequest) -> ScriptedReply:
        reply = next(remaining, None)
        if reply is None:
            raise EngineError(f"the script has no reply left for request {request.rid}", status=500)
        return reply

    return script
