"""Sockets that listen elsewhere, such as in a sandbox's network namespace, and are served here."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from functools import partial

from slime_agl.gateway.bodies import json_bytes
from slime_agl.gateway.http.connections import Serve
from slime_agl.gateway.http.listener import Listener
from slime_agl.gateway.http.requests import Answer, Request
from slime_agl.gateway.protocols.protocol import openai_error
from slime_agl.gateway.refusal import Refusal

QUOTED = 100


class Sockets:
    """Serves sockets until they are forgotten. Owned by the gateway's event loop."""

    def __init__(self, serve: Serve, counters: Counter[str]) -> None:
        self._handler, self._counters = serve, counters
        self._served: dict[socket.socket, Listener] = {}

    async def listen(self, listening: socket.socket, under: str) -> None:
        """Serve a socket, which is closed when it is forgotten. under: refuse paths that are not below it; '' for none.

        A listener of its own, so that its connections end with it and the gateway's other requests pay nothing.
        """
        listening.setblocking(False)
        listener = Listener(partial(self._serve, under) if under else self._handler, self._counters)
        await listener.listen(sock=listening)
        self._served[listening] = listener

    async def forget(self, listening: socket.socket) -> None:
        """Close a socket and its connections. Idempotent."""
        listener = self._served.pop(listening, None)
        if listener is not None:
            await listener.close()

    async def close(self) -> None:
        await asyncio.gather(*(self.forget(listening) for listening in list(self._served)))

    async def _serve(self, under: str, request: Request) -> Answer | None:
        if request.path.startswith(f"{under}/"):
            return await self._handler(request)
        self._counters["foreign_paths"] += 1
        said = f"{request.path[:QUOTED]!r} is not served here; use the base URL that the agent was given"
        return Answer(json_bytes(openai_error(Refusal(403, said, type="permission_error", code="forbidden"))), 403)
