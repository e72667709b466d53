"""Keeping a connection alive while the status of its answer is not known yet."""

from __future__ import annotations

import asyncio
import re

from aiohttp import web

from slime_agl.gateway.request import Answer
from slime_agl.gateway.sessions.calls import Call

# Below the five seconds that httpx waits for a byte unless told otherwise.
KEEP_ALIVE_SECONDS = 4.0
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
# Clients that read over interim responses. http.client, below requests, takes 102 for the answer.
_READS_OVER = re.compile(r"python-httpx/|OpenAI/Python|Anthropic/Python|aiohttp/")


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
