"""Kept HTTP/1.1 connections for one thing: a body goes out, a status and a body come back.

A general client builds and checks a request object, its headers, its cookies and a response object for each
call; next to a turn of an agent that is a seventh of the gateway's work. Parsing is httptools'.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import nullcontext
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 10.0
# An SGLang server closes a connection that was idle for 5 s. Reusing one at that moment loses the request.
IDLE_SECONDS = 4.0


class NotConnected(OSError):
    """No connection could be made, so nothing was sent."""


class ConnectionBroke(OSError):
    """The connection ended before the whole answer was there. What was sent may have had its effect."""


class Posted(NamedTuple):
    """An answer: its HTTP status and its body, as bytes."""

    status: int
    body: bytes


class _Origin:
    """Where an address leads. head: the request line and the headers that are always the same."""

    __slots__ = ("free", "head", "host", "port", "tls")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.tls = parts.hostname or "", parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.head = (
            f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
            "Accept: */*\r\nContent-Type: application/json\r\n"
        ).encode("ascii")
        self.free: deque[tuple[float, _Connection]] = deque()


class Connections:
    """Posts JSON over connections that are kept for the next post to the same address.

    limit: most posts on the wire at a time, 0 for no limit. Lives on one event loop.
    """

    def __init__(self, limit: int = 0) -> None:
        self._room = asyncio.Semaphore(limit) if limit else nullcontext()
        self._origins: dict[str, _Origin] = {}
        self._open: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def post(self, url: str, body: bytes, headers: dict[str, str] | None = None) -> Posted:
        """Post `body`; redirects are answers like any other. Cancelling it drops the connection.

        Raises:
            NotConnected: nothing was sent.
            ConnectionBroke: something was.
        """
        async with self._room:
            return await self._post(url, body, headers or {})

    async def close(self) -> None:
        """Drop all connections. May be called twice."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in tuple(self._open):
            connection.drop()
        self._origins.clear()

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> Posted:
        origin = self._origins.get(url)
        if origin is None:
            origin = self._origins[url] = _Origin(url)
        connection = self._kept(origin) or await self._connected(origin)
        try:
            answer = await connection.ask(_head(origin, body, headers), body)
        except BaseException:
            connection.drop()
            raise
        if connection.reusable:
            self._keep(origin, connection)
        else:
            connection.drop()
        return answer

    def _kept(self, origin: _Origin) -> _Connection | None:
        """The connection used last, unless it may be closing: it is the one that the server waits for longest."""
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        while origin.free:
            since, connection = origin.free.pop()
            if connection.reusable and since > oldest:
                return connection
            connection.drop()
        return None

    def _keep(self, origin: _Origin, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        origin.free.append((loop.time(), connection))
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_SECONDS, self._swept)

    def _swept(self) -> None:
        """Close what was idle for too long, while there is anything to close."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_SECONDS
        for origin in self._origins.values():
            while origin.free and (origin.free[0][0] <= oldest or not origin.free[0][1].reusable):
                origin.free.popleft()[1].drop()
        kept = any(origin.free for origin in self._origins.values())
        self._sweep = loop.call_later(IDLE_SECONDS, self._swept) if kept else None

    async def _connected(self, origin: _Origin) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._open), origin.host, origin.port, ssl=origin.tls or None
                )
        except TimeoutError as late:
            raise NotConnected(f"{origin.host}:{origin.port} took no connection in {CONNECT_SECONDS:g} s") from late
        except OSError as fault:
            raise NotConnected(f"{origin.host}:{origin.port}: {fault}") from fault
        return connection


def _head(origin: _Origin, body: bytes, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers):
        raise ValueError(f"a header of {headers} holds a line break, which would begin a header of its own")
    return b"%b%bContent-Length: %d\r\n\r\n" % (origin.head, lines.encode("latin-1"), len(body))


class _Connection(asyncio.Protocol):
    """One connection with at most one post on it.

    reusable: the last answer is complete, and neither side has said that it closes.
    """

    def __init__(self, everyone: set[_Connection]) -> None:
        self._everyone = everyone
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Posted] | None = None
        self._pieces: list[bytes] = []
        self._measured = False
        self._until_closed = False
        self.reusable = False

    def ask(self, head: bytes, body: bytes) -> asyncio.Future[Posted]:
        self.reusable = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.writelines((head, body))
        return self._answer

    def drop(self) -> None:
        self.reusable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._everyone.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._everyone.discard(self)
        if self._until_closed and error is None:
            self.on_message_complete()
        self._fail(ConnectionBroke(str(error) if error else "closed by the other side"), error)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionBroke(f"the answer is not HTTP: {error!r}"), error)
            self.drop()

    def on_message_begin(self) -> None:
        self._pieces, self._measured, self._until_closed = [], False, False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._measured = True

    def on_headers_complete(self) -> None:
        self._until_closed = not self._measured

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # an interim answer; the real one follows
        self._until_closed = False
        if self._answer is None or self._answer.done():
            self.drop()  # an answer that nobody asked for; the next one would be taken for another's
            return
        self.reusable = self._parser.should_keep_alive() and not self._transport.is_closing()
        self._answer.set_result(Posted(status, b"".join(self._pieces)))
        self._pieces = []

    def _fail(self, fault: ConnectionBroke, cause: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            fault.__cause__ = cause
            self._answer.set_exception(fault)
