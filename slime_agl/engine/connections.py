"""Kept HTTP/1.1 connections for one thing: a body goes out, a status and a body come back.

A general client builds and checks a request object, its headers, its cookies and a response object for each
call; next to a turn of an agent that is a seventh of the gateway's work. Parsing is httptools'.

The other side is not trusted: an answer is bounded in bytes and, once it has begun, in time, and what comes when
nothing was asked ends the connection, so that it is never taken for the next answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 10.0
# An SGLang server closes a connection that was idle for 5 s. Reusing one at that moment loses the request.
IDLE_SECONDS = 4.0
# From an answer's headers to its end. Engines begin an answer when they have all of it.
BODY_SECONDS = 120.0
LARGEST_HEAD, LARGEST_BODY = 1 << 16, 1 << 28
# A host that vanished sends nothing, not even an end: after these seconds it is asked for a sign of life, so often.
ALIVE_AFTER, ALIVE_EVERY, ALIVE_TRIES = 30, 10, 3

T = TypeVar("T")


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

    A connection whose answer could not be read is not used again.

    limit: most posts on the wire at a time, 0 for no limit. Lives on one event loop.
    """

    def __init__(self, limit: int = 0) -> None:
        self._room = asyncio.Semaphore(limit) if limit else nullcontext()
        self._origins: dict[str, _Origin] = {}
        self._open: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def post(
        self,
        url: str,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        read: Callable[[Posted], T],
        largest: int = LARGEST_BODY,
    ) -> T:
        """Post `body` and return what `read` makes of the answer; redirects are answers like any other.

        When `read` raises, the connection is dropped. largest: most bytes of an answer's body. Cancelling drops the
        connection.

        Raises:
            NotConnected: nothing was sent.
            ConnectionBroke: something was.
        """
        async with self._room:
            return await self._post(url, body, headers or {}, read, largest)

    async def close(self) -> None:
        """Drop all connections. May be called twice."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in tuple(self._open):
            connection.drop()
        self._origins.clear()

    async def _post(
        self, url: str, body: bytes, headers: dict[str, str], read: Callable[[Posted], T], largest: int
    ) -> T:  # fmt: skip
        origin = self._origins.get(url)
        if origin is None:
            origin = self._origins[url] = _Origin(url)
        connection = self._kept(origin) or await self._connected(origin)
        try:
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

    reusable: the last answer is complete, nothing came after it, and neither side has said that it closes.
    """

    def __init__(self, everyone: set[_Connection]) -> None:
        self._everyone = everyone
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Posted] | None = None
        self._pieces: list[bytes] = []
        self._head_bytes = self._body_bytes = self._largest = 0
        self._in_body = self._measured = self._until_closed = False
        self._deadline: asyncio.TimerHandle | None = None
        self.reusable = False

    def ask(self, head: bytes, body: bytes, largest: int) -> asyncio.Future[Posted]:
        self.reusable = False
        self._answer = asyncio.get_running_loop().create_future()
        self._head_bytes, self._body_bytes, self._largest = 0, 0, largest
        self._transport.writelines((head, body))
        return self._answer

    def drop(self) -> None:
        self.reusable = False
        self._stop_clock()
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._everyone.add(self)
        _keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._stop_clock()
        self._everyone.discard(self)
        if self._until_closed and error is None:
            self.on_message_complete()
        self._fail(ConnectionBroke(str(error) if error else "closed by the other side"), error)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.drop()  # nobody asked; the next answer would be made of this
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
            self.drop()  # a second answer to one question

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
            return  # an interim answer; the real one follows
        self._stop_clock()
        self._until_closed = self._in_body = False
        if self._answer is None or self._answer.done():
            self.drop()  # an answer that nobody asked for; the next one would be taken for another's
            return
        # An answer that is there before its question is wholly sent is the beginning of a close.
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
    for name, value in (
        ("TCP_KEEPIDLE", ALIVE_AFTER), ("TCP_KEEPINTVL", ALIVE_EVERY), ("TCP_KEEPCNT", ALIVE_TRIES),
    ):  # fmt: skip
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
