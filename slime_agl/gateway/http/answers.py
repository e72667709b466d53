"""Write the JSON answers of turns from prepared pieces.

Why not `web.Response`: it collects headers in a multidict and writes them one by one, which takes 3 % of the gateway's
CPU per turn (`scripts/bench/gateway --other`, two interleaved rounds). What is sent is the same, except for the header
that names aiohttp.
"""

from __future__ import annotations

import time
from email.utils import formatdate

from aiohttp import web

from slime_agl.gateway.bodies import JSON, json_bytes

_HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\nContent-Length: %d\r\nDate: %b\r\n\r\n".encode()


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
    """Writes answers with status 200."""

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
