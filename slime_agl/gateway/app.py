"""The HTTP surface: routes, errors in the protocol's shape, replies as one body or as events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from slime_agl.chat.renderer import Renderer
from slime_agl.gateway import chat_completions as chat
from slime_agl.gateway.address import presented_key
from slime_agl.gateway.calls import Call
from slime_agl.gateway.refusal import Refusal, sealed
from slime_agl.gateway.request import TurnRequest
from slime_agl.gateway.session import Session
from slime_agl.gateway.sessions import Sessions

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 10.0
LARGEST_BODY = 512 * 1024 * 1024
ATTEMPT = "/rollout/{rollout_id}/attempt/{attempt_id}/v1"


def build_app(sessions: Sessions, renderer: Renderer, model: str) -> web.Application:
    """The gateway's application. `model` is the name that `/v1/models` lists."""
    app = web.Application(client_max_size=LARGEST_BODY, middlewares=[_errors])
    surface = _Surface(sessions, renderer, model)
    app.router.add_post(ATTEMPT + "/chat/completions", surface.chat_completions)
    app.router.add_get(ATTEMPT + "/models", surface.models)
    app.router.add_get("/v1/models", surface.models)
    app.router.add_get("/health", surface.health)
    app.router.add_get("/metrics", surface.metrics)
    return app


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refusal as refusal:
        return _json(chat.error_body(refusal), refusal.status, _retry_header(refusal))
    except web.HTTPException as error:
        refusal = Refusal(error.status, f"{request.method} {request.path}: {error.reason}", type="not_found_error")
        return _json(chat.error_body(refusal), error.status)
    except (asyncio.CancelledError, ConnectionResetError):
        # The client is gone; its call waits for a retry.
        raise
    except Exception as error:
        # The last boundary before the agent: it gets a 500 it should not repeat, we get the traceback.
        logger.exception("a request to %s failed", request.path)
        refusal = Refusal(500, f"{type(error).__name__}: {error}", type="api_error", code="gateway_error")
        return _json(chat.error_body(refusal), 500, _retry_header(refusal))


class _Surface:
    def __init__(self, sessions: Sessions, renderer: Renderer, model: str) -> None:
        self._sessions, self._renderer, self._model = sessions, renderer, model

    def _enter(self, request: web.Request) -> Session:
        ids = request.match_info
        return self._sessions.enter(ids["rollout_id"], ids["attempt_id"], presented_key(request.headers))

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        session = self._enter(request)
        raw = await request.read()
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"the request body is not JSON: {error}") from error
        turn_request, shape = chat.read_request(body, self._model)
        if session.sealed:
            self._enter(request)
        call = self._sessions.call(session, turn_request, (len(raw), hash(raw)), marked=_is_retry(request))
        try:
            if shape.stream:
                return await self._stream(request, session, call, turn_request, shape)
            answers = await asyncio.shield(call.task)
            _still_wanted(session, call)
            body = chat.completion(answers, turn_request, shape, self._renderer.decode)
            response = _json(body)
            await response.prepare(request)
            await response.write_eof()
            call.settle()
            return response
        finally:
            if not call.delivered:
                call.leave(self._sessions.give_up)

    async def _stream(
        self, request: web.Request, session: Session, call: Call, turn_request: TurnRequest, shape: chat.Shape
    ) -> web.StreamResponse:
        """Events of a finished turn; comments keep the connection alive while it is sampled."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        while not call.task.done():
            await asyncio.wait([call.task], timeout=KEEP_ALIVE_SECONDS)
            if not call.task.done():
                if not response.prepared:
                    await response.prepare(request)
                await response.write(b": keep-alive\n\n")
        try:
            answers = call.task.result()
            _still_wanted(session, call)
        except Refusal as refusal:
            if not response.prepared:
                raise
            await response.write(_event(chat.error_body(refusal)))
            return response
        if not response.prepared:
            await response.prepare(request)
        events = chat.chunks(answers, turn_request, shape, self._renderer.decode)
        await response.write(b"".join(_event(event) for event in events) + b"data: [DONE]\n\n")
        await response.write_eof()
        call.settle()
        return response

    async def models(self, request: web.Request) -> web.Response:
        if "rollout_id" in request.match_info:
            self._enter(request)
        card = {"id": self._model, "object": "model", "created": 0, "owned_by": "slime_agl"}
        return _json({"object": "list", "data": [card]})

    async def health(self, request: web.Request) -> web.Response:
        return _json(
            {"status": "ok", "open_attempts": len(self._sessions), "calls_in_flight": self._sessions.in_flight}
        )

    async def metrics(self, request: web.Request) -> web.Response:
        values = {"open_attempts": len(self._sessions), "calls_in_flight": self._sessions.in_flight}
        values |= {f"{name}_total": count for name, count in sorted(self._sessions.counters.items())}
        return web.Response(text="".join(f"slime_agl_gateway_{name} {value}\n" for name, value in values.items()))


def _still_wanted(session: Session, call: Call) -> None:
    """Raises Refusal when the attempt was sealed while the turn was sampled: its agent must not go on."""
    if not call.wanted:
        raise sealed(session.spec.rollout_id, session.spec.attempt_id)


def _is_retry(request: web.Request) -> bool:
    headers = request.headers
    if "Idempotency-Key" in headers:
        return True
    return headers.get("x-stainless-retry-count", "0") not in ("", "0")


def _retry_header(refusal: Refusal) -> dict[str, str]:
    """The OpenAI and Anthropic clients obey x-should-retry; without it they repeat every 409 and 5xx."""
    return {"x-should-retry": "true" if refusal.retry else "false"}


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json", headers=headers)


def _event(body: Any) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
