"""Read HTTP/1.1 messages, one at a time on a kept-alive connection, as cheaply as Python can."""

from __future__ import annotations

import asyncio


class Framing(asyncio.Protocol):
    """Passes each complete message to `received`; a message without Content-Length has no body."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._wanted:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            self._wanted = end + 4 + (int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0)
        if len(self._buffer) >= self._wanted:
            self.received(self._buffer)
            self._buffer.clear()
            self._wanted = 0

    def received(self, message: bytearray) -> None:
        """Handle a message; its buffer is reused afterwards."""
        raise NotImplementedError
