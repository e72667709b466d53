"""A request of an agent over HTTP, and how its answer is written."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple, Protocol

from multidict import CIMultiDict

from slime_agl.gateway.bodies import JSON, BrokenBody

_NONE: Mapping[str, str] = MappingProxyType({})
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


class Client(Protocol):
    """The client's side of a connection."""

    def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises ConnectionResetError if the client is gone."""
        ...

    async def drained(self) -> None:
        """Wait until it has taken most of what was sent."""
        ...

    def resume(self) -> None:
        """Go on reading from it."""
        ...


class Answer(NamedTuple):
    """An answer. kind: media type of its body. headers: further ones."""

    body: bytes
    status: int = 200
    kind: str = JSON
    headers: Mapping[str, str] = _NONE


class Request:
    """A request whose head has arrived; its body arrives while it is served.

    path: percent-encoded, without the query. size: bytes of the body, None if not announced. arrived: the whole body
    has; broken: it never will. keep_alive: the connection outlives the answer. modern: HTTP/1.1, not 1.0. begun: an
    answer is being sent.
    """

    __slots__ = (
        *("_client", "_parts", "_waiting", "arrived", "begun", "broken", "headers", "held", "keep_alive"),
        *("method", "modern", "path", "size"),
    )

    def __init__(
        self,
        client: Client,
        method: str,
        path: str,
        headers: CIMultiDict[str],
        *,
        keep_alive: bool,
        modern: bool,
    ) -> None:
        self.method, self.path, self.headers = method, path, headers
        self.keep_alive, self.modern = keep_alive, modern
        length = headers.get("Content-Length")
        self.size = int(length) if length else None if "Transfer-Encoding" in headers else 0
        self.arrived = self.broken = self.begun = False
        self._client = client
        self._parts: list[bytes] = []
        self._waiting: asyncio.Future[None] | None = None
        self.held = 0

    def read_nowait(self) -> bytes:
        """Return what has arrived of the body since the last call."""
        parts = self._parts
        self._parts, self.held = [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_some(self) -> bytes:
        """Wait for more of the body and return it; b'' at the end.

        Raises:
            BrokenBody: the body is not framed as HTTP requires.
        """
        while not (self._parts or self.arrived):
            if self.broken:
                raise BrokenBody
            self._waiting = asyncio.get_running_loop().create_future()
            self._client.resume()
            await self._waiting
        return self.read_nowait()

    def interim(self, data: bytes) -> None:
        """Send an interim response. Raises ConnectionResetError if the client is gone."""
        self._client.send(data)

    async def answer(self, answer: Answer) -> None:
        """Send an answer; return when the client has taken most of it. Raises ConnectionResetError if it is gone."""
        self._client.send(self.written(answer))
        await self._client.drained()

    def written(self, answer: Answer) -> bytes:
        """Return the bytes of an answer to this request."""
        body, status, kind, headers = answer
        lines = b"Content-Type: %b\r\nContent-Length: %d\r\n" % (kind.encode("ascii"), len(body))
        if headers:
            lines += "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
        return self._head(status, lines) + (b"" if self.method == "HEAD" else body)

    async def stream(self, data: bytes, *, kind: str, last: bool = False) -> None:
        """Send the next piece of an answer of unknown length. Raises ConnectionResetError if the client is gone."""
        head = b""
        if not self.begun:
            self.keep_alive &= self.modern  # HTTP/1.0 has no chunks: the answer ends with the connection
            chunked = b"Transfer-Encoding: chunked\r\n" if self.modern else b""
            head = self._head(200, b"Content-Type: %b\r\nCache-Control: no-cache\r\n%b" % (kind.encode(), chunked))
        if self.modern:
            data = b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if last else b"")
        self._client.send(head + data)
        await self._client.drained()

    def framing(self) -> bytes:
        """Return the header that says where the body ends."""
        return b"Transfer-Encoding: chunked" if self.size is None else b"Content-Length: %d" % self.size

    def take(self, part: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(part)
        self.held += len(part)
        self._wake()

    def end(self, *, broken: bool = False) -> None:
        """The body has arrived, or never will."""
        self.arrived, self.broken = not broken, broken
        self._wake()

    def _head(self, status: int, lines: bytes) -> bytes:
        self.begun = True
        # Without the whole body, it is not certain where the client's next request begins.
        self.keep_alive &= self.arrived
        minor, close = 1, b""
        if not self.modern:
            minor, close = 0, b"Connection: keep-alive\r\n" if self.keep_alive else b""
        elif not self.keep_alive:
            close = b"Connection: close\r\n"
        return b"HTTP/1.%d %d %b\r\n%bDate: %b\r\n%b\r\n" % (
            *(minor, status, _PHRASES[status], lines),
            *(_date(int(time.time())), close),
        )

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


@functools.lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode("ascii")
