"""The engine's side of an HTTP/1.1 connection, one request at a time, with every failure of a broken engine."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

# A script's operations on a connection: bytes are sent, a number is a pause, a word ends it.
Op = bytes | float | str
RESET, CLOSE, HANG, OPEN = "reset", "close", "hang", "open"


class Gone(Exception):
    """The connection is closed."""


class Asked(NamedTuple):
    method: str
    path: str
    body: bytes


class Connection(asyncio.Protocol):
    """answer: returns the script to play for a request. ambush: called at each phase, True to reset there."""

    def __init__(
        self, answer: Callable[[Connection, Asked], Awaitable[Iterable[Op]]], ambush: Callable[[str], bool]
    ) -> None:
        self._answer, self._ambush = answer, ambush
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        if self._ambush("connect"):
            self._reset()
        else:
            self._task = asyncio.ensure_future(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._more.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()
        self._more.set()

    async def pause(self, seconds: float) -> None:
        """Raises Gone if the peer disconnects meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            return
        raise Gone

    async def _serve(self) -> None:
        try:
            while True:
                ops = await self._answer(self, await self._request())
                for op in ops:
                    await self.play(op)
        except Gone:
            self.transport.close()

    async def play(self, op: Op) -> None:
        if isinstance(op, bytes):
            self.transport.write(op)
        elif isinstance(op, float):
            await self.pause(op)
        elif op == RESET:
            self._reset()
            raise Gone
        elif op == CLOSE:
            self.transport.close()
            raise Gone
        elif op == HANG:
            await self.gone.wait()
            raise Gone

    async def _request(self) -> Asked:
        head = await self._until(lambda: self._buffer.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in self._buffer else 0)
        if self._ambush("head"):
            self._reset()
            raise Gone
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        length = int(headers.get("content-length", "0"))
        body = await self._until(lambda: length if len(self._buffer) >= length else -1) if length else b""
        method, _, rest = lines[0].partition(" ")
        return Asked(method, rest.partition(" ")[0].partition("?")[0], body)

    async def _until(self, found: Callable[[], int]) -> bytes:
        while (end := found()) <= 0:
            if self.gone.is_set():
                raise Gone
            self._more.clear()
            await self._more.wait()
        piece = bytes(self._buffer[:end])
        del self._buffer[:end]
        return piece

    def _reset(self) -> None:
        raw = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def message(body: bytes, status: str = "200 OK", headers: Iterable[str] = (), length: int | str | None = None) -> bytes:
    """Format one answer. length: the Content-Length to claim, correct by default; '' omits the header."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *headers]
    lines += [f"Content-Length: {size}"] if size != "" else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def json_message(value: Any, status: str = "200 OK") -> bytes:
    return message(json.dumps(value).encode(), status)
