"""Server-side connections: malformed requests, clients that never finish one, and the answers that clients wait for."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from email.utils import formatdate
from typing import cast

from aiohttp import web

from slime_agl.gateway.bodies import JSON, json_bytes
from slime_agl.gateway.protocols.protocol import openai_error
from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.request import TurnAnswer
from slime_agl.gateway.sessions.calls import Call

logger = logging.getLogger(__name__)

# A request's head must arrive within this many checks.
CHECK_SECONDS, MOST_CHECKS = 10.0, 4
# Agents pool connections between turns; closing one early would race with its next request.
KEEPALIVE_SECONDS = 3600.0
# Below httpx's default read timeout of 5 s.
KEEP_ALIVE_SECONDS = 4.0
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
# Clients that skip interim responses. http.client, which requests uses, takes 102 for the answer.
_SKIPS_INTERIM = re.compile(r"python-httpx/|OpenAI/Python|Anthropic/Python|aiohttp/")

_HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\nContent-Length: %d\r\nDate: %b\r\n\r\n".encode()


class Connection(web.RequestHandler):
    """A connection that agents send requests on. Never logs received bytes: they hold keys and conversations.

    heard: chunks received since the last request was served; starts at 1. serving: a request is being served.
    """

    __slots__ = ("_counters", "_checks", "heard", "serving")

    def __init__(self, server: web.Server, counters: Counter[str], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=KEEPALIVE_SECONDS,
            access_log=None,  # pyright: ignore[reportArgumentType]  # None disables it, which the annotation omits
            auto_decompress=False,
        )
        self._counters = counters
        self._checks = 0
        self.heard, self.serving = 1, False

    def data_received(self, data: bytes) -> None:
        self.heard += 1
        try:
            super().data_received(data)
        except Exception as error:  # a request that trips up the parser costs its sender the connection
            self.log_exception(exc_info=error)
            self.force_close()

    def check(self) -> None:
        """Close the connection if the head of a request is still incomplete after several checks."""
        self._checks = self._checks + 1 if self.heard and not self.serving else 0
        if self._checks >= MOST_CHECKS:
            self._counters["unfinished_requests"] += 1
            self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer requests that are not HTTP, and failures outside all handlers."""
        if status >= 500:
            self.log_exception(exc_info=exc)
        else:
            self._counters["malformed_requests"] += 1
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has already begun")
        said = "the request is not well-formed HTTP" if status < 500 else "the gateway failed"
        kind = "invalid_request_error" if status < 500 else "api_error"
        body = json_bytes(openai_error(Refusal(status, said, type=kind)))
        response = web.Response(body=body, status=status, content_type="application/json")
        response.force_close()
        return response

    def log_exception(self, *args: object, **kw: object) -> None:
        error = kw.get("exc_info")
        logger.error("a connection failed: %s", type(error).__name__ if error is not None else "unknown")


async def watch(server: web.Server) -> None:
    """Check all connections periodically until cancelled."""
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        for connection in server.connections:
            cast(Connection, connection).check()


async def answered(request: web.BaseRequest, call: Call) -> list[TurnAnswer]:
    """Wait for the answers of a call, however long its turns are sampled or parked.

    Sends interim responses to clients known to skip them, so that they do not time out. An interim response does not
    commit to a status, so a failure can still send its own.

    Raises:
        Refusal: the call was refused.
    """
    patient = request.version >= (1, 1) and _SKIPS_INTERIM.search(request.headers.get("User-Agent", ""))
    if not patient or call.task.done():
        return await call.answers()
    loop, timer = asyncio.get_running_loop(), None

    def still_under_way() -> None:
        nonlocal timer
        if request.transport is not None:
            request.transport.write(PROCESSING)
            timer = loop.call_later(KEEP_ALIVE_SECONDS, still_under_way)

    timer = loop.call_later(KEEP_ALIVE_SECONDS, still_under_way)
    try:
        return await call.answers()
    finally:
        timer.cancel()


class _Sent(web.StreamResponse):
    """Returned to the server for an answer that is already written."""

    async def prepare(self, request: web.BaseRequest) -> None:
        pass

    async def write_eof(self, data: bytes = b"") -> None:
        pass

    @property
    def keep_alive(self) -> bool:
        return True


class Answers:
    """Writes answers with status 200 from prepared pieces.

    Why not `web.Response`: it collects headers in a multidict and writes them one by one, which takes 3 % of the
    gateway's CPU per turn (`scripts/bench/gateway --other`, two interleaved rounds). What is sent is the same, except
    for the header that names aiohttp.
    """

    def __init__(self) -> None:
        self._sent = _Sent()
        self._second, self._date = 0, b""

    async def send(self, request: web.BaseRequest, body: object) -> web.StreamResponse:
        """Send `body` as JSON. Returns once the transport has buffered it."""
        raw = json_bytes(body)
        if request.version == (1, 1) and request.keep_alive:
            await request.writer.write(_HEAD % (len(raw), self._now()) + raw)
            return self._sent
        response = web.Response(body=raw, content_type=JSON)
        await response.prepare(request)
        await response.write_eof()
        return response

    def _now(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second, self._date = now, formatdate(now, usegmt=True).encode()
        return self._date
