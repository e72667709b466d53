"""A socket that listens, and its connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from slime_agl.gateway.bodies import json_bytes
from slime_agl.gateway.http.connections import Connection, Serve
from slime_agl.gateway.http.requests import Answer
from slime_agl.gateway.protocols.protocol import openai_error
from slime_agl.gateway.refusal import Refusal

CHECK_SECONDS = 10.0
SHUTDOWN_SECONDS = 1.0


class Listener:
    """Serves one listening socket, from `listen` to `close`. Belongs to the gateway's event loop."""

    def __init__(self, serve: Serve, counters: Counter[str]) -> None:
        malformed = openai_error(Refusal(400, "the request is not well-formed HTTP", type="invalid_request_error"))
        self._serve, self._counters = serve, counters
        self._malformed = Answer(json_bytes(malformed), 400)
        self._listening: asyncio.AbstractServer | None = None
        self._watching: asyncio.Future[None] | None = None
        self.connections: set[Connection] = set()

    async def listen(self, **where: Any) -> int:
        """Begin to serve. where: as `loop.create_server` takes it. Returns the port, 0 if the socket has none.

        Raises:
            OSError: the address is taken, or belongs to another machine.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self._serve, self._malformed, self.connections, self._counters), **where
        )
        self._listening, self._watching = server, asyncio.ensure_future(self._watch())
        address = server.sockets[0].getsockname()
        return address[1] if isinstance(address, tuple) else 0

    def stop_listening(self) -> None:
        """Take no new connections; those that are open go on. Idempotent."""
        if self._listening is not None:
            self._listening.close()

    async def close(self) -> None:
        """Close the socket and its connections; requests in service have a moment to be answered. Idempotent."""
        self.stop_listening()
        if self._watching is not None:
            self._watching.cancel()
        tasks = [task for connection in tuple(self.connections) if (task := connection.leave()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=SHUTDOWN_SECONDS)
        for connection in tuple(self.connections):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for connection in tuple(self.connections):
                connection.check()
