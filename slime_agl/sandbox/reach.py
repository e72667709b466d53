"""Connections from inside a sandbox to the gateway, through a socket that listens inside.

The socket is bound in the sandbox's network namespace and served out here, so that nothing else is reachable and no
program has to relay in there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Protocol
from urllib.parse import urlsplit

from slime_agl.errors import SandboxError

CHUNK = 1 << 16


class Serving(Protocol):
    """A gateway of this process. Any thread or event loop may call it."""

    url: str

    async def listen(self, listening: socket.socket, under: str = "") -> None:
        """Serve a listening socket, which becomes the gateway's. under: refuse paths that do not begin so."""
        ...

    async def forget(self, listening: socket.socket) -> None:
        """Close the socket and its connections. Idempotent."""
        ...


def address_of(endpoint: str) -> tuple[str, int]:
    """Host and port of a URL.

    Raises:
        SandboxError: it is not plain HTTP, which is all that can be relayed under another name.
    """
    parts = urlsplit(endpoint)
    if parts.scheme != "http" or not parts.hostname:
        raise SandboxError(
            f"the gateway's URL is {endpoint}; a sandbox without a network reaches http://HOST:PORT only"
        )
    return parts.hostname, parts.port or 80


class Reach:
    """serving: the gateway of this process, which serves the sockets itself; other endpoints are relayed to."""

    def __init__(self, serving: Serving | None = None) -> None:
        self._serving = serving
        self._relays: dict[socket.socket, Relay] = {}

    async def serve(self, listening: socket.socket, endpoint: str) -> str:
        """Serve a socket that listens inside; return the endpoint's URL as programs inside use it."""
        parts = urlsplit(endpoint)
        port = listening.getsockname()[1]
        inside = parts._replace(netloc=f"127.0.0.1:{port}").geturl()
        if self._serving is not None and address_of(self._serving.url) == address_of(endpoint):
            await self._serving.listen(listening, parts.path.rstrip("/"))
        else:
            self._relays[listening] = relay = Relay(*address_of(endpoint))
            await relay.start(listening)
        return inside

    async def forget(self, listening: socket.socket) -> None:
        """Stop serving a socket."""
        relay = self._relays.pop(listening, None)
        if relay is not None:
            await relay.stop()
        elif self._serving is not None:
            await self._serving.forget(listening)


class Relay:
    """Passes bytes between the connections of a listening socket and an address."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._server = await asyncio.start_server(self._connected, sock=listening)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._join(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        try:
            with contextlib.suppress(OSError):
                back, far = await asyncio.open_connection(*self._address)
                await asyncio.gather(_pass(reader, far), _pass(back, writer))
        finally:
            for end in (writer, far):
                if end is not None:
                    end.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
