"""The HTTP side of the scripted server: its thread, its endpoints, and the requests it holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from slime_agl.engine.route import PROBE_RID
from slime_agl.loops import LoopThread
from slime_agl.testing.answers import Answer, Shaped, shape
from slime_agl.testing.facts import facts
from slime_agl.testing.record import Received, Script

LARGEST_BODY = 1 << 30

logger = logging.getLogger(__name__)
# A router asks each new worker whether it speaks gRPC; aiohttp would log an error for every such question.
logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], BadHttpMessage)))


@dataclass(slots=True, eq=False)
class Pending:
    """A request that waits. `verdict` resolves to True to answer it, to False to abort it."""

    rid: str
    verdict: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def resolve(self, answer: bool) -> None:
        if not self.verdict.done():
            self.verdict.set_result(answer)


class HttpSide:
    """Owner of the server thread. Public methods come from any thread and act on the server's loop."""

    def __init__(self, fake: Script) -> None:
        self._fake = fake
        self._thread: LoopThread | None = None
        self._runner: web.AppRunner | None = None
        self._pending: list[Pending] = []
        self._unfinished: dict[tuple[int, ...], list[Shaped]] = {}
        self._holding = self._paused = False
        self._in_flight = 0
        self._port = 0

    @property
    def url(self) -> str:
        if not self._port:
            raise RuntimeError("the fake server is not started; use `with FakeSGLang() as fake:` or call start()")
        return f"http://127.0.0.1:{self._port}"

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def start(self) -> None:
        self._thread = LoopThread("fake-sglang")
        self._thread.start()
        self._thread.run(self._open())

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.run(self._runner.cleanup())
        thread.stop()

    def hold(self) -> None:
        self._on_loop(lambda: setattr(self, "_holding", True))

    def release(self, count: int | None) -> None:
        def act() -> None:
            self._holding = self._holding and count is not None
            self._let_go(count)

        self._on_loop(act)

    def _let_go(self, count: int | None) -> None:
        if not self._paused:
            waiting = [pending for pending in self._pending if not pending.verdict.done()]
            for pending in waiting[:count]:
                pending.resolve(True)

    def _on_loop(self, act: Callable[[], Any]) -> None:
        async def on_loop() -> None:
            act()

        if self._thread is None or self._thread.inside:
            act()
        else:
            self._thread.run(on_loop())

    async def _open(self) -> None:
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_post("/generate", self._generate)
        for path, answer in facts(self._fake, lambda: self.url, lambda: self.in_flight).items():
            app.router.add_get(path, _json(answer))
        for path in ("/abort_request", "/pause_generation", "/continue_generation", "/flush_cache"):
            app.router.add_post(path, self._control)
        app.router.add_get("/flush_cache", self._control)
        options = {"access_log": None, "logger": logger, "handler_cancellation": True, "shutdown_timeout": 0.1}
        self._runner = web.AppRunner(app, **options)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        ids = body.get("input_ids")
        if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids) or body.get("stream"):
            return _refusal(400, "a request needs `input_ids`, one flat list of token ids, and no `stream`")
        if body.get("rid") == PROBE_RID:
            return self._probed(body)
        self._in_flight += 1  # before the test hears that it has arrived
        try:
            return await self._served(http, body, ids)
        finally:
            self._in_flight -= 1
            self._fake.ended()

    async def _served(self, http: web.Request, body: Mapping[str, Any], ids: list[int]) -> web.Response:
        request = self._receive(http, body)
        if (fault := self._fake.next_fault()) is not None:
            return _fail(http, *fault)
        if len(ids) >= (limit := self._fake.context_length):
            words = f"The input ({len(ids)} tokens) is longer than the model's context length ({limit} tokens)."
            return _refusal(400, words)
        if any(pending.rid == request.rid for pending in self._pending):
            return _refusal(400, f"Duplicate request ID detected: {request.rid}")
        try:
            shaped = self._answer(request)
        except Exception as fault:  # the responder is the test's own code: its fault goes to the one who asked
            logger.exception("the responder failed on request %d", request.index)
            return _refusal(400, f"the responder given to answer_with raised {fault!r} on request {request.index}")
        if shaped is None:
            return _refusal(400, _unanswered(request))
        shaped = await self._delivered(request, shaped)
        self._fake.sent(request, shaped)
        return web.json_response(self._wire(request, shaped))

    def _probed(self, body: Mapping[str, Any]) -> web.Response:
        """A question whether replay data arrives: it is no part of the script."""
        self._fake.control.append(("/generate", body))
        tokenizer, ids = self._fake.tokenizer, tuple(body["input_ids"])
        request = Received(-1, ids, body["sampling_params"], {}, PROBE_RID, body, "")
        return web.json_response(self._wire(request, shape(Answer(ids=[1]), tokenizer, {}, prompt_length=len(ids))))

    def _receive(self, http: web.Request, body: Mapping[str, Any]) -> Received:
        fake, ids = self._fake, tuple(body["input_ids"])
        rid = str(body.get("rid") or f"fake-{len(fake.requests)}")
        headers = {name.lower(): value for name, value in http.headers.items()}
        params = body.get("sampling_params") or {}
        request = Received(len(fake.requests), ids, params, headers, rid, body, fake.tokenizer.decode(ids))
        fake.arrived(request)
        return request

    def _answer(self, request: Received) -> Shaped | None:
        if rest := self._unfinished.get(request.input_ids):
            shaped = rest.pop(0)
            if not rest:
                del self._unfinished[request.input_ids]
            return shaped
        answer = self._fake.next_answer(request)
        if answer is None:
            return None
        return shape(answer, self._fake.tokenizer, request.sampling_params, prompt_length=len(request.input_ids))

    async def _delivered(self, request: Received, shaped: Shaped) -> Shaped:
        """Wait while requests are held or generation is paused; cut the answer when an abort comes first.

        What was not sent, by an abort or because the client went away, is said when the rest is asked for.
        """
        pending = Pending(request.rid)
        self._pending.append(pending)
        if not (self._holding or self._paused):
            pending.resolve(True)
        part = shaped.first(0)
        try:
            if await pending.verdict:
                return shaped
            part = shaped.first(min(self._fake.partial, len(shaped.ids)))
        finally:
            self._pending.remove(pending)
            if not (pending.verdict.done() and not pending.verdict.cancelled() and pending.verdict.result()):
                self._unfinished.setdefault(request.input_ids + part.ids, []).append(shaped.after(len(part.ids)))
        return part

    async def _control(self, http: web.Request) -> web.Response:
        body = await http.json() if http.can_read_body else {}
        self._fake.control.append((http.path, body))
        if http.path == "/abort_request":
            self._abort(lambda pending: body.get("abort_all") or pending.rid == body.get("rid"))
        elif http.path == "/pause_generation":
            self._paused = True
            self._abort(lambda _: body.get("mode", "abort") == "abort")
        elif http.path == "/continue_generation":
            self._paused = False
            self._let_go(0 if self._holding else None)
        return web.json_response({"status": "ok"})

    def _abort(self, chosen: Callable[[Pending], Any]) -> None:
        for pending in self._pending:
            if chosen(pending):
                pending.resolve(False)

    def _wire(self, request: Received, shaped: Shaped) -> dict[str, Any]:
        fake = self._fake
        reason = {"type": shaped.finish, "matched": shaped.matched}
        pairs = zip(shaped.logprobs, shaped.ids, strict=True)
        meta = {
            "id": request.rid,
            "finish_reason": {name: value for name, value in reason.items() if value is not None},
            "prompt_tokens": len(request.input_ids),
            "completion_tokens": len(shaped.ids),
            "cached_tokens": 0,
            "weight_version": fake.weight_version,
            "output_token_logprobs": [[value, token, None] for value, token in pairs],
            "e2e_latency": 0.0,
            **(fake.replay.meta(request.json, request.input_ids, shaped.ids) if fake.replay else {}),
            **shaped.meta,
        }
        return {"text": fake.tokenizer.decode(shaped.ids), "output_ids": list(shaped.ids), "meta_info": meta}


def _json(answer: Callable[[], Any]) -> Callable[[web.Request], Any]:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(answer())

    return handler


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def _fail(http: web.Request, status: int, message: str) -> web.Response:
    if status:
        return _refusal(status, message)
    http.transport.abort()
    return web.Response()


def _unanswered(request: Received) -> str:
    return (
        f"the fake SGLang server has no answer for request {request.index} (rid {request.rid}, "
        f"{len(request.input_ids)} tokens, ending in {request.text[-80:]!r}); "
        "script one with say(...), call_tool(...) or answer_with(...)"
    )
