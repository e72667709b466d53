"""HTTP handlers of the gateway: errors in each protocol's shape, replies as one body or as events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re

import orjson

from slime_agl.chat.template.renderer import Renderer
from slime_agl.gateway.bodies import Place, check_kind, json_bytes, read_body
from slime_agl.gateway.door import Door, presented_key
from slime_agl.gateway.http.connections import Serve
from slime_agl.gateway.http.events import take_event
from slime_agl.gateway.http.models import Models
from slime_agl.gateway.http.requests import Answer, Request
from slime_agl.gateway.http.routes import ATTEMPT, EVENTS, Handler, Routes, Target, decoded, expected
from slime_agl.gateway.protocols.anthropic.dialect import AnthropicMessages
from slime_agl.gateway.protocols.chat import ChatCompletions
from slime_agl.gateway.protocols.completions import Completions
from slime_agl.gateway.protocols.protocol import KEEP_ALIVE, Dialect, Exchange
from slime_agl.gateway.protocols.responses.dialect import Responses, stored_response
from slime_agl.gateway.refusal import Refusal, quoted, sealed
from slime_agl.gateway.repeats import Repeats, plain
from slime_agl.gateway.request import TurnAnswer
from slime_agl.gateway.sessions.calls import Call, Mark
from slime_agl.gateway.sessions.registry import Sessions
from slime_agl.gateway.sessions.session import Session
from slime_agl.gateway.turn.commits import TurnSink

logger = logging.getLogger(__name__)

# Between the comments that keep a stream alive.
KEEP_ALIVE_SECONDS = 10.0
# Between interim responses: below httpx's default read timeout of 5 s.
INTERIM_SECONDS = 4.0
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
# Clients that skip interim responses. http.client, which requests uses, takes 102 for the answer.
SKIPS_INTERIM = re.compile(r"python-httpx/|OpenAI/Python|Anthropic/Python|aiohttp/")
EVENT_STREAM = "text/event-stream"
MOST_PATH = 100
# Methods that a web page can make a browser send without a preflight, and without a body that would give it away.
READING = frozenset({"GET", "HEAD"})


def build_surface(sessions: Sessions, renderer: Renderer, model: str, door: Door, sink: TurnSink) -> Serve:
    """Build what serves requests. model: the name that `/v1/models` lists. sink: takes the rewards of agents."""
    surface = _Surface(sessions, renderer, model, door, sink)
    routes = surface.routes
    for path, dialect in surface.dialects.items():
        routes.add("POST", ATTEMPT + path, surface.turns(dialect))
    routes.add("POST", ATTEMPT + "/messages/count_tokens", surface.count_tokens)
    routes.add("GET", ATTEMPT + "/responses/{name}", surface.response)
    routes.add("DELETE", ATTEMPT + "/responses/{name}", surface.forget_response)
    routes.add("POST", ATTEMPT + EVENTS, surface.event)
    routes.add("GET", ATTEMPT + "/models", surface.models)
    routes.add("GET", ATTEMPT + "/models/{name}", surface.model)
    routes.add("GET", "/v1/models", surface.all_models)
    routes.add("GET", "/health", surface.health)
    routes.add("GET", "/metrics", surface.metrics)
    return surface.serve


class _Surface:
    """The handlers."""

    def __init__(self, sessions: Sessions, renderer: Renderer, model: str, door: Door, sink: TurnSink) -> None:
        self._sessions, self._models, self._door, self._sink = sessions, Models(model), door, sink
        self._repeats = Repeats()
        self._openai = ChatCompletions(model, renderer.token_bytes)
        self._anthropic = AnthropicMessages(model)
        self.routes = Routes()
        self.dialects: dict[str, Dialect] = {
            "/chat/completions": self._openai,
            "/completions": Completions(model, renderer.decode),
            "/responses": Responses(model, renderer.token_bytes),
            "/messages": self._anthropic,
        }

    async def serve(self, request: Request) -> Answer | None:
        """Admit a request, and answer every failure in the error shape of its protocol."""
        try:
            self._door.check(request.headers)
            handler, target = self.routes.find(request.method, request.path)
            doorman = self._sessions.doorman
            if doorman is not None and target.attempt_id:
                key = presented_key(request.headers)
                await self._sessions.admit(doorman, target.rollout_id, target.attempt_id, key)
            if "Expect" in request.headers:
                expected(request)
            return await handler(request, target)
        except Refusal as error:
            refusal = error
        except ConnectionResetError:
            raise  # the client is gone; its call waits for a retry
        except Exception as error:  # the last boundary before the agent
            refusal = _failed(request, error)
        self._note(request, refusal)
        dialect = self._anthropic if _is_anthropic(request) else self._openai
        # The OpenAI and Anthropic clients obey x-should-retry; without it they retry every 409 and 5xx.
        headers = {"x-should-retry": "true" if refusal.retry else "false"}
        return Answer(json_bytes(dialect.error(refusal)), refusal.status, headers=headers)

    def _note(self, request: Request, refusal: Refusal) -> None:
        """Record a refusal with the attempt that the path names, so that its end can be explained."""
        found = self.routes.within_attempt(request.path)
        if found is not None and request.method == "POST":  # with other methods, clients look whether a server is there
            target, rest = found
            turn = rest.removeprefix("/v1").removeprefix("/v1") in self.dialects
            words = quoted(f"{request.method} {rest[:MOST_PATH]}", refusal)
            self._sessions.refused(target.rollout_id, target.attempt_id, words, turn=turn)

    def turns(self, dialect: Dialect) -> Handler:
        """Make the handler of one protocol's requests for turns."""

        async def handle(request: Request, target: Target) -> Answer | None:
            session = self._enter(request, target)
            expected, limit = await self._size(request, session)
            place = Place(session.served, expected)
            await place.enter()
            try:
                raw = await self._body(request, session, limit, place)
                place.settle(len(raw))
                try:
                    parsed = self._repeats.parse(raw, dialect.array, session.seen)
                except orjson.JSONDecodeError as error:
                    raise _not_json(error) from error
                del raw
                exchange = dialect.read(parsed.body, session, parsed.frame)
                session.bounds.check_turns(exchange.turns)
                if session.sealed:
                    self._enter(request, target)
                digest = (type(dialect), parsed.digest)
                call = self._sessions.call(session, exchange.turns, digest, Mark.of(request.headers))
                return await self._answer(request, session, call, dialect, exchange)
            finally:
                place.leave()

        return handle

    async def _answer(
        self, request: Request, session: Session, call: Call, dialect: Dialect, exchange: Exchange
    ) -> None:
        try:
            if exchange.stream:
                await self._stream(request, session, call, dialect, exchange)
                return
            answers = await _answers(request, call)
            _still_wanted(session, call)
            await request.answer(Answer(json_bytes(exchange.body(answers))))
            call.settle()
        finally:
            if not call.delivered:
                call.leave(self._sessions.give_up)

    async def _stream(
        self, request: Request, session: Session, call: Call, dialect: Dialect, exchange: Exchange
    ) -> None:
        """Send a finished turn as events; comments keep the connection alive while it is sampled."""
        while call.task is not None and not call.done:
            await asyncio.wait([call.task], timeout=KEEP_ALIVE_SECONDS)
            if not call.done:
                await request.stream(KEEP_ALIVE, kind=EVENT_STREAM)
        try:
            answers = call.result()
            _still_wanted(session, call)
        except Exception as error:  # `serve` answers it, unless the stream has begun: then it ends with an error event
            if not request.begun:
                raise
            refusal = error if isinstance(error, Refusal) else _failed(request, error)
            self._note(request, refusal)
            await request.stream(dialect.error_event(refusal), kind=EVENT_STREAM, last=True)
            return
        await request.stream(b"".join(exchange.events(answers)), kind=EVENT_STREAM, last=True)
        call.settle()

    async def count_tokens(self, request: Request, target: Target) -> Answer:
        session = self._enter(request, target)
        expected, limit = await self._size(request, session)
        place = Place(session.served, expected)
        await place.enter()
        try:
            asked = self._anthropic.read_count(_parsed(await self._body(request, session, limit, place)))
            session.bounds.check_turns([asked])
            return _json({"input_tokens": await self._sessions.count(session, asked)})
        finally:
            place.leave()

    async def _size(self, request: Request, session: Session) -> tuple[int, int]:
        """Return the bytes that a request's body may have, and its limit.

        Raises:
            Refusal: 415 for anything but plain JSON, 400 for a body that exceeds the context.
        """
        check_kind(request.headers)
        bounds, size = session.bounds, request.size
        if size is not None and size <= bounds.body:
            return size, bounds.body
        images = await self._sessions.shows_images(session)
        limit = bounds.with_images if images else bounds.body
        if size is not None and size > limit:
            raise session.overflowed(bounds.too_large(size, images))
        return (bounds.body if size is None else size), limit

    async def _body(self, request: Request, session: Session, limit: int, place: Place) -> bytes:
        raw = await read_body(request, limit, place)
        if raw is None:
            raise session.overflowed(session.bounds.too_large(limit + 1, limit > session.bounds.body))
        session.bounds.check_structure(raw)
        return raw

    async def event(self, request: Request, target: Target) -> Answer:
        session = self._enter(request, target)
        expected, limit = await self._size(request, session)
        place = Place(session.served, expected)
        await place.enter()
        try:
            return _json(take_event(session, _parsed(await self._body(request, session, limit, place)), self._sink))
        finally:
            place.leave()

    async def response(self, request: Request, target: Target) -> Answer:
        return _json(stored_response(self._enter(request, target).stored, target.name).body)

    async def forget_response(self, request: Request, target: Target) -> Answer:
        stored, name = self._enter(request, target).stored, target.name
        stored_response(stored, name)
        stored.forget(name)
        return _json({"id": name, "object": "response", "deleted": True})

    async def models(self, request: Request, target: Target) -> Answer:
        self._enter(request, target)
        return _json(self._models.list(anthropic=_is_anthropic(request)))

    async def all_models(self, request: Request, target: Target) -> Answer:
        return _json(self._models.list(anthropic=_is_anthropic(request)))

    async def model(self, request: Request, target: Target) -> Answer:
        self._enter(request, target)
        return _json(self._models.card(target.name, anthropic=_is_anthropic(request)))

    async def health(self, request: Request, target: Target) -> Answer:
        return _json(
            {"status": "ok", "open_attempts": len(self._sessions), "calls_in_flight": self._sessions.in_flight}
        )

    async def metrics(self, request: Request, target: Target) -> Answer:
        values = {"open_attempts": len(self._sessions), "calls_in_flight": self._sessions.in_flight}
        values |= {_series(name): count for name, count in sorted(self._sessions.counters.items())}
        lines = "".join(f"slime_agl_gateway_{name} {value}\n" for name, value in values.items())
        return Answer(lines.encode(), kind="text/plain; charset=utf-8")

    def _enter(self, request: Request, target: Target) -> Session:
        key = presented_key(request.headers)
        # A browser can be made to read without a key; sending a key, or JSON, would need a preflight first.
        placeholder = bool(key) or request.method not in READING
        return self._sessions.enter(target.rollout_id, target.attempt_id, key, placeholder=placeholder)


async def _answers(request: Request, call: Call) -> list[TurnAnswer]:
    """Wait for the answers of a call, however long its turns are sampled or parked.

    Sends interim responses to clients known to skip them, so that they do not time out. An interim response does not
    commit to a status, so a failure can still send its own.

    Raises:
        Refusal: the call was refused.
    """
    patient = request.modern and SKIPS_INTERIM.search(request.headers.get("User-Agent", ""))
    if not patient or call.done:
        return await call.answers()
    loop, timer = asyncio.get_running_loop(), None

    def still_under_way() -> None:
        nonlocal timer
        with contextlib.suppress(ConnectionResetError):
            request.interim(PROCESSING)
            timer = loop.call_later(INTERIM_SECONDS, still_under_way)

    timer = loop.call_later(INTERIM_SECONDS, still_under_way)
    try:
        return await call.answers()
    finally:
        timer.cancel()


def _failed(request: Request, error: Exception) -> Refusal:
    """Log the traceback; return a 500 that the agent should not retry."""
    logger.error("a request to %r failed", decoded(request.path), exc_info=error)
    return Refusal(500, f"{type(error).__name__}: {error}", type="api_error", code="gateway_error")


def _series(counter: str) -> str:
    """The Prometheus name of a counter; what follows its slash is a label."""
    name, slash, label = counter.partition("/")
    return f'{name}_total{{name="{label}"}}' if slash else f"{name}_total"


def _parsed(raw: bytes) -> object:
    try:
        return plain(raw)
    except orjson.JSONDecodeError as error:
        raise _not_json(error) from error


def _not_json(error: orjson.JSONDecodeError) -> Refusal:
    return Refusal(400, f"the request body is not JSON: {error}")


def _still_wanted(session: Session, call: Call) -> None:
    """Raise Refusal if the attempt was sealed while the turn was sampled: its agent must not continue."""
    if not call.wanted:
        raise sealed(session.spec.rollout_id, session.spec.attempt_id)


def _is_anthropic(request: Request) -> bool:
    """Check for Anthropic's protocol, which its clients name in every request."""
    return "anthropic-version" in request.headers or request.path.endswith(("/messages", "/messages/count_tokens"))


def _json(body: object) -> Answer:
    return Answer(json_bytes(body))
