"""The server's side of a connection: requests that are not HTTP, clients that never finish one, and clients that wait."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from typing import Any

from aiohttp import web

from slime_agl.gateway.bodies import json_bytes
from slime_agl.gateway.protocols.protocol import openai_error
from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.request import Answer
from slime_agl.gateway.sessions.calls import Call

logger = logging.getLogger(__name__)

# The head of a request has as long to arrive as this many looks take.
LOOK_SECONDS, MOST_LOOKS = 10.0, 4
# Agents keep connections in a pool between turns; closing them early would race with their next request.
KEEPALIVE_SECONDS = 3600.0
# Below the five seconds that httpx waits for a byte unless told otherwise.
KEEP_ALIVE_SECONDS = 4.0
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
# Clients that read over interim responses. http.client, below requests, takes 102 for the answer.
_READS_OVER = re.compile(r"python-httpx/|OpenAI/Python|Anthropic/Python|aiohttp/")


class Connection(web.RequestHandler):
    """One connection. What it received is never logged: keys stand in heads, and conversations in bodies.

    heard: pieces received since the last request was served, or one before the first. serving: a request is.
    """

    __slots__ = ("_counters", "_looks", "heard", "serving")

    def __init__(self, server: web.Server, counters: Counter[str], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server, loop=loop, keepalive_timeout=KEEPALIVE_SECONDS, access_log=None, auto_decompress=False
        )  # fmt: skip
        self._counters = counters
        self._looks = 0
        self.heard, self.serving = 1, False

    def data_received(self, data: bytes) -> None:
        self.heard += 1
        try:
            super().data_received(data)
        except Exception as error:  # what no parser foresaw costs its sender the connection
            self.log_exception(exc_info=error)
            self.force_close()

    def look(self) -> None:
        """Close the connection when the head of a request has been under way for several looks."""
        self._looks = self._looks + 1 if self.heard and not self.serving else 0
        if self._looks >= MOST_LOOKS:
            self._counters["unfinished_requests"] += 1
            self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to what is not HTTP, and to failures outside of all handlers."""
        if status >= 500:
            self.log_exception(exc_info=exc)
        else:
            self._counters["malformed_requests"] += 1
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        said = "the request is not well-formed HTTP" if status < 500 else "the gateway failed"
        kind = "invalid_request_error" if status < 500 else "api_error"
        body = json_bytes(openai_error(Refusal(status, said, type=kind)))
        response = web.Response(body=body, status=status, content_type="application/json")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        error = kw.get("exc_info")
        logger.error("a connection failed: %s", type(error).__name__ if error is not None else "unknown")


async def watch(server: web.Server) -> None:
    """Look at all connections from time to time, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for connection in server.connections:
            connection.look()


async def answered(request: web.Request, call: Call) -> list[Answer]:
    """The answers of a call, however long its turns are sampled or held.

    Interim responses say that it is under way, to clients known to read over them. They promise no status, so a
    failure still has its own.

    Raises:
        Refusal: the call was refused.
    """
    patient = request.version >= (1, 1) and _READS_OVER.search(request.headers.get("User-Agent", ""))
    if not patient or call.task.done():
        return await asyncio.shield(call.task)
    loop, timer = asyncio.get_running_loop(), None

    def still_under_way() -> None:
        nonlocal timer
        if request.transport is not None:
            request.transport.write(PROCESSING)
            timer = loop.call_later(KEEP_ALIVE_SECONDS, still_under_way)

    timer = loop.call_later(KEEP_ALIVE_SECONDS, still_under_way)
    try:
        return await asyncio.shield(call.task)
    finally:
        timer.cancel()
