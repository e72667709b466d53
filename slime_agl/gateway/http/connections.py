"""Server-side connections: malformed requests, clients that never finish one, and clients that wait for an answer."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from typing import cast

from aiohttp import web

from slime_agl.gateway.bodies import json_bytes
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
