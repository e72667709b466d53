"""Server-side HTTP/1.1 connections: requests in, one served at a time; answers out. httptools does the parsing.

Why not aiohttp's server: it builds a URL, a stream and a writer per request, and passes each request through two tasks.
That is an eighth of the gateway's CPU per turn (`scripts/bench/gateway --other`: 0.70 ms with it, 0.62 without).

Clients are not trusted. Request heads have limits of size and time (see `check`). Whoever reads a body limits its size;
reading from the socket pauses while nobody does. Parsing stops at the first byte that is not HTTP, so a request cannot
hide in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import cast

import httptools
from multidict import CIMultiDict

from slime_agl.gateway.http.requests import Answer, Request

logger = logging.getLogger(__name__)

# The head of a request must arrive within this many checks, see `Listener`.
MOST_CHECKS = 4
# Agents pool connections between turns; closing one early would race with its next request.
IDLE_CHECKS = 360
# Limits of a head: bytes of its first line and of each header, number of headers, bytes without the end of one.
LONGEST_LINE, MOST_HEADERS, LARGEST_HEAD = 8190, 128, 64 * 1024
# Bytes of a body that are held while nobody reads it.
HELD_BYTES = 64 * 1024
# How long the rest of a body is discarded after its request was answered: closing at once could lose the answer.
LINGER_SECONDS = 10.0


class _Refused(Exception):
    """The head of a request exceeds a limit, or asks for a coding that is not supported."""


Serve = Callable[[Request], Awaitable[Answer | None]]
"""Serves a request. Returns its answer; None if one was sent already, or there is nobody to receive it."""


class Connection(asyncio.Protocol):
    """A connection that agents send requests on. Never logs received bytes: they hold keys and conversations.

    malformed: the answer to what is not HTTP. everyone: the open connections of its listener.
    in_head: the head of a request is expected or incomplete; False between requests. full: the client has not taken
    most of what was sent.
    """

    def __init__(self, serve: Serve, malformed: Answer, everyone: set[Connection], counters: Counter[str]) -> None:
        self._serve_request, self._malformed = serve, malformed
        self._everyone, self._counters = everyone, counters
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        # Those that are not answered; the first is in service.
        self._requests: deque[Request] = deque()
        self._arriving: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._url = b""
        self._headers: list[tuple[str, str]] = []
        # _unused: bytes that arrived since something was made of them.
        self._chunk = self._unused = self._checks = 0
        # _deaf: nothing more is parsed. _broken: what followed the requests was not HTTP.
        self._paused = self._deaf = self._broken = self._leaving = False
        self.in_head, self.full = True, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._everyone.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def eof_received(self) -> None:
        # Before `connection_lost`, which comes rounds of the event loop later: a retry may be on its way.
        if self._task is not None:
            self._task.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._everyone.discard(self)
        self._deaf = True
        if self._linger is not None:
            self._linger.cancel()
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._chunk = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data, offer)
        except httptools.HttpParserError as error:
            self._malformed_data(error)
        if self.in_head or self._arriving is not None:
            self._unused += len(data)
            if self._unused > LARGEST_HEAD and not self._deaf:
                self._break()
        if self._task is None and self._linger is None:
            self._next()
        # Nothing arrives that nobody reads. Only while it reads does a server learn that its client is gone.
        if len(self._requests) > 1 or (self._arriving is not None and self._arriving.held > HELD_BYTES):
            self._pause()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        self._use()
        self._checks = 0
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > LONGEST_LINE:
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arriving is not None:
            return  # it follows a body in chunks
        if len(self._headers) == MOST_HEADERS or len(name) + len(value) > LONGEST_LINE:
            raise _Refused
        self._headers.append((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")))

    def on_headers_complete(self) -> None:
        self._use()
        self.in_head = False
        if self._arriving is not None:
            return  # see `_decline`
        parser, headers = self._parser, CIMultiDict(self._headers)
        if headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
            raise _Refused
        self._arriving = Request(
            self,
            parser.get_method().decode("ascii"),
            _path(self._url),
            headers,
            keep_alive=parser.should_keep_alive(),
            modern=parser.get_http_version() != "1.0",
        )
        self._requests.append(self._arriving)

    def on_body(self, part: bytes) -> None:
        self._use()
        if self._arriving is not None and self._linger is None:
            self._arriving.take(part)

    def on_message_complete(self) -> None:
        request = self._arriving
        if request is None or (request.size != 0 and self._parser.should_upgrade()):
            return  # its body follows, see `_decline`
        self._arriving = None
        request.end()
        if not request.keep_alive:
            self._deaf = True  # what follows the last request is not meant for anybody
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
            self._answered(request)

    def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises ConnectionResetError if the client is gone."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._transport.write(data)

    async def drained(self) -> None:
        """Wait until most of what was sent is taken. Cancelled, as everything that serves a client, if that leaves."""
        while self.full:
            self._room = self._loop.create_future()
            await self._room

    def resume(self) -> None:
        """Go on reading."""
        if self._paused and not self._deaf:
            self._paused = False
            self._transport.resume_reading()

    def check(self) -> None:
        """Close the connection if the head of a request does not arrive, or no request for an hour."""
        self._checks = 0 if self._requests else self._checks + 1
        if self.in_head and self._checks >= MOST_CHECKS:
            self._counters["unfinished_requests"] += 1
            self._transport.abort()
        elif self._checks >= IDLE_CHECKS:
            self._transport.close()

    def leave(self) -> asyncio.Task[None] | None:
        """Close the connection, or let what is in service be answered first; return its task then."""
        self._leaving = True
        for request in self._requests:
            request.keep_alive = False
        if self._task is None:
            self._transport.close()
        return self._task

    def abort(self) -> None:
        """Drop the connection and what it serves."""
        self._transport.abort()

    def _use(self) -> None:
        """Count what arrives from here on; of the present chunk nothing, since what was used may stand before it."""
        self._unused = -self._chunk

    def _decline(self, data: bytes, offer: httptools.HttpParserUpgrade) -> None:
        """Ignore the offer of another protocol, as a server may: what follows is the body, and the next request.

        The parser takes all that follows an offer for the other protocol. So a new one is told of the body only.
        """
        while not self._deaf:
            used = offer.args[0]
            data = data[used:]
            if self._arriving is not None:
                self._parser = httptools.HttpRequestParser(self)
                data = b"POST / HTTP/1.1\r\n%b\r\n\r\n%b" % (self._arriving.framing(), data)
            elif not (used and data):
                return
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as again:
                offer = again
            except httptools.HttpParserError as error:
                self._malformed_data(error)

    def _malformed_data(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__
        if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(cause, _Refused):
            # A fault of this class, not of the request. It costs the sender the connection.
            logger.error("a connection failed: %s", type(cause).__name__)
            self._deaf = True
            self._transport.abort()
        elif not self._deaf:
            self._break()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _break(self) -> None:
        """Read no further: what comes next is not HTTP, or has no end. The requests before it are answered first."""
        self._counters["malformed_requests"] += 1
        self._deaf = True
        self._pause()
        request, self._arriving = self._arriving, None
        if request is None:
            self._broken = True
            return
        request.end(broken=True)
        if self._linger is not None:
            self._transport.close()

    def _next(self) -> None:
        """Serve the next request, or end if there will be none."""
        if self._transport.is_closing():
            return
        if self._requests:
            self._task = self._loop.create_task(self._serve(self._requests[0]))
        elif self._broken:
            refused = Request(self, "", "", CIMultiDict(), keep_alive=False, modern=True)
            self._transport.write(refused.written(self._malformed))
            self._transport.close()
        elif self._leaving:
            self._transport.close()

    async def _serve(self, request: Request) -> None:
        try:
            answer = await self._serve_request(request)
            if answer is not None:
                if request.begun:
                    raise ConnectionError("the answer has already begun")
                await request.answer(answer)
        except ConnectionResetError:
            return  # the client is gone, so `connection_lost` follows
        except asyncio.CancelledError:
            self._transport.abort()
            raise
        except Exception as error:  # the last boundary before the agent
            logger.error("a connection failed: %s", type(error).__name__)
            self._transport.abort()
            return
        self._task = None
        self._answered(request)

    def _answered(self, request: Request) -> None:
        """Go on after an answer: with the rest of the request's body, the next request, or the end."""
        if not (request.arrived or request.broken):
            request.read_nowait()
            self._linger = self._loop.call_later(LINGER_SECONDS, self._transport.close)
            self.resume()
            return
        self._requests.popleft()
        if request.broken or not request.keep_alive:
            self._transport.close()
            return
        if len(self._requests) < 2:
            self.resume()
        self._next()


def _path(url: bytes) -> str:
    """Return the path of a request's target, which may also be a whole URL."""
    if not url.startswith(b"/"):
        with contextlib.suppress(httptools.HttpParserInvalidURLError):
            url = httptools.parse_url(url).path or b"/"
    return url.partition(b"?")[0].decode("utf-8", "surrogateescape")
