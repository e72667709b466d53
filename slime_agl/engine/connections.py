"""Keep-alive HTTP/1.1 connections that post JSON and return status and body. httptools does the parsing.

Why not a general client: it builds and validates a request object, headers, cookies and a response object per call.
`scripts/bench/clients` measures the CPU per post, all clients interleaved in one run: 21.8 us here, 142.8 us with
aiohttp, 1923 us with httpx. A whole turn takes about 600 us, so aiohttp alone would add a fifth to every turn.

The server is not trusted. An answer is limited in bytes and, once it has begun, in time. Unsolicited data closes the
connection, because it would otherwise be read as the answer to the next request: tokens of one agent in the turn of
another.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 10.0
# An SGLang server closes connections that are idle for 5 s. Reusing one at that moment would lose the request.
IDLE_SECONDS = 4.0
# From the headers of an answer to its end. Engines send headers once the whole answer is ready.
BODY_SECONDS = 120.0
LARGEST_HEAD, LARGEST_BODY = 1 << 16, 1 << 28
# TCP keep-alive (seconds idle, seconds between probes, probes): a host that vanished does not even close.
ALIVE_AFTER, ALIVE_EVERY, ALIVE_TRIES = 30, 10, 3

T = TypeVar("T")


class NotConnected(OSError):
    """Connecting failed, so nothing was sent."""


class ConnectionBroke(OSError):
    """The connection ended before the answer was complete. The request may have taken effect."""


class Posted(NamedTuple):
    """An answer: HTTP status and body."""

    status: int
    body: bytes


class _Origin:
    """An address and its idle connections. head: request line and constant headers, encoded once."""

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
    """Posts JSON and keeps each connection for the next post to the same address, unless its answer was unreadable.

    limit: maximum number of concurrent posts, 0 for no limit. Belongs to one event loop.
    """

    def __init__(self, limit: int = 0) -> None:
        self._room = asyncio.Semaphore(limit) if limit else nullcontext()
        self._origins: dict[str, _Origin] = {}
        self._open: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def post(
        self,
        url: str,
        body: Sequence[bytes],
        headers: dict[str, str] | None = None,
        *,
        read: Callable[[Posted], T],
        largest: int = LARGEST_BODY,
    ) -> T:
        """Post `body`, given in pieces, and return read(answer). Redirects are not followed.

        largest: limit on the body of the answer in bytes. The connection is dropped if `read` raises, or on cancel.

        Raises:
            NotConnected: nothing was sent.
            ConnectionBroke: the request may have been processed.
        """
        async with self._room:
            return await self._post(url, body, headers or {}, read, largest)

    async def close(self) -> None:
        """Drop all connections. Idempotent."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in tuple(self._open):
            connection.drop()
        self._origins.clear()

    async def _post(
        self, url: str, body: Sequence[bytes], headers: dict[str, str], read: Callable[[Posted], T], largest: int
    ) -> T:
        origin = self._origins.get(url)
        if origin is None:
            origin = self._origins[url] = _Origin(url)
        connection = self._kept(origin) or await self._connected(origin)
        try:
            # `read` runs before the connection is returned: one that delivered nonsense must not serve another request.
            answer = read(await connection.ask(_head(origin, body, headers), body, largest))
        except BaseException:
            connection.drop()
            raise
        if connection.reusable:
            self._keep(origin, connection)
        else:
            connection.drop()
        return answer

    def _kept(self, origin: _Origin) -> _Connection | None:
        """Take the most recently used idle connection, which the server closes last; None if all may be closing."""
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
        """Close connections that were idle for too long; reschedule while any are left."""
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


def _head(origin: _Origin, body: Sequence[bytes], headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers):
        raise ValueError(f"a header of {headers} holds a line break, which would begin a header of its own")
    return b"%b%bContent-Length: %d\r\n\r\n" % (origin.head, lines.encode("latin-1"), sum(map(len, body)))


class _Connection(asyncio.Protocol):
    """A connection that carries one post at a time.

    reusable: the last answer is complete, nothing followed it, and neither side is closing.
    """

    def __init__(self, everyone: set[_Connection]) -> None:
        self._everyone = everyone
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[Posted] | None = None
        self._pieces: list[bytes] = []
        self._head_bytes = self._body_bytes = self._largest = 0
        self._in_body = self._measured = self._until_closed = False
        self._deadline: asyncio.TimerHandle | None = None
        self.reusable = False

    def ask(self, head: bytes, body: Sequence[bytes], largest: int) -> asyncio.Future[Posted]:
        self.reusable = False
        self._answer = asyncio.get_running_loop().create_future()
        self._head_bytes, self._body_bytes, self._largest = 0, 0, largest
        self._transport.writelines((head, *body))
        return self._answer

    def drop(self) -> None:
        self.reusable = False
        self._stop_clock()
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._everyone.add(self)
        _keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._stop_clock()
        self._everyone.discard(self)
        if self._until_closed and exc is None:
            self.on_message_complete()
        self._fail(ConnectionBroke(str(exc) if exc else "closed by the other side"), exc)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.drop()  # unsolicited, so it would become part of the next answer
            return
        if self._in_body:
            self._body_bytes += len(data)
        else:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(f"the answer is not HTTP: {error!r}", error)
            return
        if self._answer.done():
            return
        if self._in_body and self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(BODY_SECONDS, self._never_ends)
        if self._body_bytes > self._largest + LARGEST_HEAD:
            self._break(f"the answer has {self._body_bytes} bytes and goes on; at most {self._largest} can be true")
        elif not self._in_body and self._head_bytes > LARGEST_HEAD:
            self._break(f"the answer's headers have {self._head_bytes} bytes and go on; read are {LARGEST_HEAD}")

    def on_message_begin(self) -> None:
        self._pieces, self._measured, self._until_closed, self._in_body = [], False, False, False
        if self._answer is None or self._answer.done():
            self.drop()  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._measured = True
        if name == b"content-length" and value.isdigit() and int(value[:20]) > self._largest:
            self._break(f"the answer says it has {int(value[:20])} bytes; at most {self._largest} can be true")

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._in_body, self._until_closed = True, not self._measured

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # interim (1xx); the real answer follows
        self._stop_clock()
        self._until_closed = self._in_body = False
        if self._answer is None or self._answer.done():
            self.drop()  # unsolicited; every later answer would go to the wrong request
            return
        # A server that answers before it has read the whole request is about to close.
        closing = self._transport.is_closing() or self._transport.get_write_buffer_size()
        self.reusable = self._parser.should_keep_alive() and not closing
        self._answer.set_result(Posted(status, b"".join(self._pieces)))
        self._pieces = []

    def _never_ends(self) -> None:
        self._break(f"the answer began {BODY_SECONDS:g} s ago and has not ended, {self._body_bytes} bytes so far")

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _break(self, words: str, cause: Exception | None = None) -> None:
        self._pieces = []
        self._fail(ConnectionBroke(words), cause)
        self.drop()

    def _fail(self, fault: ConnectionBroke, cause: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            fault.__cause__ = cause
            self._answer.set_exception(fault)


def _keep_alive(sock: socket.socket | None) -> None:
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": ALIVE_AFTER, "TCP_KEEPINTVL": ALIVE_EVERY, "TCP_KEEPCNT": ALIVE_TRIES}
    for name, value in options.items():
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
