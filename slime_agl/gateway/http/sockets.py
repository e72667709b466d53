"""Sockets that listen elsewhere, such as in a sandbox's network namespace, and are served here."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from slime_agl.gateway.bodies import json_bytes
from slime_agl.gateway.http.connections import Connection, watch
from slime_agl.gateway.protocols.protocol import openai_error
from slime_agl.gateway.refusal import Refusal

QUOTED = 100
SHUTDOWN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Served:
    listening: asyncio.AbstractServer
    server: web.Server
    watching: asyncio.Task[None]


class Sockets:
    """Serves sockets until they are forgotten. Owned by the gateway's event loop."""

    def __init__(self, server: web.Server, counters: Counter[str]) -> None:
        self._handler, self._counters = server.request_handler, counters
        self._served: dict[socket.socket, _Served] = {}

    async def listen(self, listening: socket.socket, under: str) -> None:
        """Serve a socket, which is closed when it is forgotten. under: refuse paths that are not below it; '' for none.

        A server of its own, so that its connections end with it and the gateway's other requests pay nothing.
        """
        loop = asyncio.get_running_loop()
        server = web.Server(partial(self._serve, under) if under else self._handler, handler_cancellation=True)
        listening.setblocking(False)
        made = await loop.create_server(partial(Connection, server, self._counters, loop), sock=listening)
        self._served[listening] = _Served(made, server, asyncio.ensure_future(watch(server)))

    async def forget(self, listening: socket.socket) -> None:
        """Close a socket and its connections. Idempotent."""
        served = self._served.pop(listening, None)
        if served is not None:
            served.watching.cancel()
            served.listening.close()
            await served.server.shutdown(SHUTDOWN_SECONDS)

    async def close(self) -> None:
        await asyncio.gather(*(self.forget(listening) for listening in list(self._served)))

    async def _serve(self, under: str, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if path.startswith(f"{under}/"):
            return await self._handler(request)
        self._counters["foreign_paths"] += 1
        said = f"{path[:QUOTED]!r} is not served here; use the base URL that the agent was given"
        body = json_bytes(openai_error(Refusal(403, said, type="permission_error", code="forbidden")))
        return web.Response(body=body, status=403, content_type="application/json")
