"""HTTP as the gateway's connections speak it: the same as aiohttp's server, however the bytes arrive."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from http.client import parse_headers
from io import BytesIO

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_agl.gateway.bodies import BrokenBody
from slime_agl.gateway.http import connections, requests
from slime_agl.gateway.http.connections import HELD_BYTES, LARGEST_HEAD, Connection
from slime_agl.gateway.http.listener import Listener
from slime_agl.gateway.http.requests import Answer, Request

MALFORMED = Answer(b"not HTTP", 400)


class Wire(asyncio.Transport):
    """A transport that remembers what was done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.closed, self.paused = bytearray(), "", False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = self.closed or "aborted"

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False


async def read_all(request: Request) -> bytes:
    parts = []
    while part := await request.read_some():
        parts.append(part)
    return b"".join(parts)


class Talk:
    """A connection without a socket, which serves by `serve`. seen: the requests that it has served."""

    def __init__(self, serve: Callable[[Request], Awaitable[Answer | None]] | None = None) -> None:
        self.wire, self.counters, self.everyone = Wire(), Counter[str](), set[Connection]()
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connection = Connection(serve or self.echo, MALFORMED, self.everyone, self.counters)
        self.connection.connection_made(self.wire)

    async def echo(self, request: Request) -> Answer:
        body = await read_all(request)
        self.seen.append((request.method, request.path, dict(request.headers), body))
        return Answer(b"%d" % len(self.seen))

    def say(self, data: bytes) -> None:
        if not self.wire.closed:
            self.connection.data_received(data)

    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of the answers so far."""
        found, rest = [], bytes(self.wire.sent)
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            line, _, lines = head.partition(b"\r\n")
            length = int(parse_headers(BytesIO(lines + b"\r\n\r\n"))["Content-Length"])
            found.append((int(line[9:12]), rest[:length]))
            rest = rest[length:]
        return found


async def rounds(count: int = 20) -> None:
    """Let the event loop do what it has to."""
    for _ in range(count):
        await asyncio.sleep(0)


Sent = tuple[str, str, bytes, list[int] | None]
"""Method, path, body, and the sizes of its chunks; None for a body with Content-Length."""

sent = st.tuples(
    st.sampled_from(["POST", "PUT", "DELETE"]),
    st.text("abc%/.", min_size=1, max_size=12).map(lambda text: f"/{text}"),
    st.binary(max_size=300),
    st.none() | st.lists(st.integers(1, 40), min_size=1, max_size=4),
)


def written(request: Sent, number: int) -> bytes:
    method, path, body, chunks = request
    head = f"{method} {path}?q={number} HTTP/1.1\r\nHost: h\r\nX-Number: {number}\r\n"
    if chunks is None:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    coded, at, sizes = b"", 0, iter(chunks * (len(body) + 1))
    while at < len(body):
        part = body[at : at + next(sizes)]
        coded += b"%x\r\n%b\r\n" % (len(part), part)
        at += len(part)
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + coded + b"0\r\nX-Trailer: 1\r\n\r\n"


@settings(deadline=None, max_examples=60)
@given(requests=st.lists(sent, min_size=1, max_size=5), cuts=st.lists(st.integers(0, 10**6), max_size=12))
def test_requests_are_the_same_however_their_bytes_arrive(requests: list[Sent], cuts: list[int]) -> None:
    raw = b"".join(written(request, number) for number, request in enumerate(requests))
    places = sorted({0, len(raw), *(cut % len(raw) for cut in cuts)})

    async def run() -> Talk:
        talk = Talk()
        for begin, end in zip(places, places[1:], strict=False):
            talk.say(raw[begin:end])
            await rounds()
        await rounds(40)
        return talk

    talk = asyncio.run(run())
    found = [(method, path, headers["X-Number"], body) for method, path, headers, body in talk.seen]
    assert found == [(one[0], one[1], str(at), one[2]) for at, one in enumerate(requests)]
    assert not any("X-Trailer" in headers for _, _, headers, _ in talk.seen), "only a head has headers"
    assert talk.answers() == [(200, b"%d" % (at + 1)) for at in range(len(requests))]
    assert not talk.wire.closed and not talk.wire.paused


GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz"
END = b"GET /end HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
# What clients send, well or badly.
STREAMS = {
    "one": GET,
    "three at once": GET + POST + GET,
    "a head only": b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "the last": END,
    "old": b"GET /a HTTP/1.0\r\n\r\n",
    "old, kept alive": b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GET,
    "empty lines before": b"\r\n\r\n" + GET,
    "a query": b"GET /a?b=c%20d#e HTTP/1.1\r\nHost: h\r\n\r\n",
    "a whole URL": b"GET http://h:80/a/b?c HTTP/1.1\r\nHost: h\r\n\r\n",
    "encoded": b"GET /%C3%A4%2Fb HTTP/1.1\r\nHost: h\r\n\r\n",
    "chunks": b"POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    + GET,
    "a long body": b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300000 + GET,
    "names in capitals": b"POST /b HTTP/1.1\r\nHOST: h\r\nCONTENT-LENGTH: 3\r\n\r\nxyz",
    "no HTTP": b"hello there\r\n\r\n",
    "no method": b"BREW /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "another version": b"GET /a HTTP/3.7\r\nHost: h\r\n\r\n",
    "two lengths": b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nxyz",
    "a length and chunks": (
        b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "no length": b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: -3\r\n\r\nxyz",
    "a space before a colon": b"GET /a HTTP/1.1\r\nHost : h\r\n\r\n",
    "a folded header": b"GET /a HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n",
    "a null": b"GET /a HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n",
    "a long line": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    "a long header": b"GET /a HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
    "many headers": b"GET /a HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    "a request hidden in a body": (
        b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(GET) + GET + POST
    ),
}
Answers = list[tuple[int, str, bytes]]


async def exchange(port: int, raw: bytes) -> Answers:
    """Status, Connection header and body of everything that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found: Answers = []
    try:
        writer.write(raw)
        while head := await reader.readuntil(b"\r\n\r\n"):
            line, _, lines = head.partition(b"\r\n")
            headers, status = parse_headers(BytesIO(lines)), int(line[9:12])
            length = 0 if raw.startswith(b"HEAD") and not found else int(headers["Content-Length"])
            body = await reader.readexactly(length)
            well = status == 200
            found.append((status, str(headers.get("Connection", "")) if well else "", body if well else b""))
    except (asyncio.IncompleteReadError, ConnectionError):
        return found
    finally:
        writer.close()
    raise AssertionError("readuntil returns no empty line")


@pytest.fixture
async def both() -> AsyncIterator[tuple[int, int]]:
    """Ports of our listener and of aiohttp's server, which answer alike."""

    async def ours(request: Request) -> Answer:
        try:
            body = await read_all(request)
        except BrokenBody:
            return Answer(b"", 400)
        return Answer(b"%b %b %d %b" % (request.method.encode(), request.path.encode(), len(body), body[:9]))

    async def theirs(request: web.BaseRequest) -> web.Response:
        try:
            body = await request.read()
        except web.RequestPayloadError:
            return web.Response(status=400)
        said = b"%b %b %d %b" % (request.method.encode(), request.rel_url.raw_path.encode(), len(body), body[:9])
        return web.Response(body=said)

    listener = Listener(ours, Counter())
    port = await listener.listen(host="127.0.0.1", port=0)
    runner = web.ServerRunner(web.Server(theirs))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield port, runner.addresses[0][1]
    await listener.close()
    await runner.cleanup()


@pytest.mark.parametrize("name", STREAMS)
async def test_answers_are_those_of_aiohttps_server(both: tuple[int, int], name: str) -> None:
    last = b"" if name in ("the last", "old") else END
    ours, theirs = [await asyncio.wait_for(exchange(port, STREAMS[name] + last), 20) for port in both]
    assert ours == theirs and ours


async def test_what_came_before_a_malformed_request_is_answered() -> None:
    talk = Talk()
    talk.say(GET + POST + b"hello there\r\n\r\n" + GET)
    await rounds()
    assert talk.answers() == [(200, b"1"), (200, b"2"), (400, b"not HTTP")]
    assert talk.wire.closed == "closed" and talk.counters["malformed_requests"] == 1


async def test_what_follows_the_last_request_is_not_read() -> None:
    talk = Talk()
    talk.say(END + GET)
    await rounds()
    assert talk.answers() == [(200, b"1")] and talk.wire.closed == "closed" and not talk.counters


async def test_other_protocols_may_be_offered_again_and_again() -> None:
    talk, offer = Talk(), b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    talk.say(offer * 1200)
    await rounds(3000)
    assert [status for status, _ in talk.answers()] == [200] * 1200
    talk.say(POST)
    await rounds()
    assert talk.seen[-1][3] == b"xyz"


@pytest.mark.parametrize("cut", [1, 20, 110, 126, 130, 10**6])
@pytest.mark.parametrize(
    "framed",
    [b"Content-Length: 3\r\n\r\nxyz", b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n2\r\nyz\r\n0\r\n\r\n"],
)
async def test_an_offer_of_another_protocol_may_have_a_body(framed: bytes, cut: int) -> None:
    """Java's client and curl --http2 offer HTTP/2 with their first request."""
    talk = Talk()
    offer = b"POST /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + framed
    raw = offer + offer + GET
    for at in range(0, len(raw), cut):
        talk.say(raw[at : at + cut])
        await rounds()
    assert [(path, body) for _, path, _, body in talk.seen] == [("/a", b"xyz"), ("/a", b"xyz"), ("/a", b"")]
    assert [status for status, _ in talk.answers()] == [200] * 3 and not talk.wire.closed


@pytest.mark.parametrize(
    ("begun", "endless"),
    [
        (b"GET /", b"a"),
        (b"GET /a HTTP/1.1\r\nHost: h\r\nX", b"x"),
        (b"GET /a HTTP/1.1\r\nHost: h\r\nX: ", b"x"),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ", b"x"),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"X: y\r\n"),
    ],
)
async def test_what_never_ends_is_given_up(begun: bytes, endless: bytes) -> None:
    async def serve(request: Request) -> Answer:
        try:
            return Answer(await read_all(request))
        except BrokenBody:
            return MALFORMED

    talk, step = Talk(serve), endless * 512
    talk.say(begun)
    for _ in range(2 + LARGEST_HEAD // len(step)):
        talk.say(step)
        await rounds()
    assert talk.wire.closed == "closed" and talk.answers() == [(400, b"not HTTP")]


async def test_a_body_that_nobody_reads_does_not_arrive() -> None:
    read, waits = asyncio.Event(), asyncio.Event()

    async def serve(request: Request) -> Answer:
        waits.set()
        await read.wait()
        return Answer(b"%d" % len(await read_all(request)))

    talk, part = Talk(serve), b"x" * 1024
    size = 2 * HELD_BYTES
    talk.say(b"POST /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
    await waits.wait()
    arrived = 0
    while not talk.wire.paused:
        talk.say(part)
        arrived += len(part)
    assert HELD_BYTES < arrived <= HELD_BYTES + len(part)
    read.set()
    await rounds()
    assert not talk.wire.paused
    talk.say(b"x" * (size - arrived))
    await rounds()
    assert talk.answers() == [(200, b"%d" % size)] and not talk.wire.paused


async def test_a_client_is_listened_to_while_its_request_is_served() -> None:
    """Else nobody would learn that it is gone; only requests sent ahead wait in the socket."""
    going, cancelled = asyncio.Event(), []

    async def serve(request: Request) -> Answer | None:
        going.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.path)
            raise
        return None

    talk = Talk(serve)
    talk.say(b"POST /long HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (3 * HELD_BYTES) + b"x" * 3 * HELD_BYTES)
    await going.wait()
    assert not talk.wire.paused
    talk.say(GET + GET)
    assert talk.wire.paused
    talk.connection.eof_received()
    await rounds()
    assert cancelled == ["/long"] and talk.wire.closed and talk.wire.sent == b""


@pytest.mark.parametrize("length", ["Content-Length: 200000", "Transfer-Encoding: chunked"])
async def test_an_answer_before_the_bodys_end_is_the_last(length: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(request: Request) -> Answer:
        return Answer(b"no", 413)

    talk = Talk(refuse)
    talk.say(f"POST /a HTTP/1.1\r\nHost: h\r\n{length}\r\n\r\n".encode())
    await rounds()
    assert talk.answers() == [(413, b"no")] and b"Connection: close" in talk.wire.sent
    rest = b"x" * 200_000 if "Length" in length else b"30d40\r\n" + b"x" * 200_000 + b"\r\n0\r\n\r\n"
    for at in range(0, len(rest), 1000):
        assert not talk.wire.closed and not talk.wire.paused, "closing now could lose the answer"
        talk.say(rest[at : at + 1000])
    assert talk.wire.closed == "closed"
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.0)
    talk = Talk(refuse)
    talk.say(f"POST /a HTTP/1.1\r\nHost: h\r\n{length}\r\n\r\n".encode())
    while not talk.wire.closed:  # the rest never comes
        await asyncio.sleep(0)


async def test_the_next_request_waits_until_the_client_has_taken_the_answer() -> None:
    talk = Talk()
    talk.connection.pause_writing()
    talk.say(GET + GET)
    await rounds()
    assert len(talk.seen) == 1
    talk.connection.resume_writing()
    await rounds()
    assert len(talk.seen) == 2 and talk.answers() == [(200, b"1"), (200, b"2")]


async def test_a_stream_is_framed_as_its_client_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_date", lambda second: b"now")

    async def serve(request: Request) -> None:
        await request.stream(b"one", kind="text/event-stream")
        await request.stream(b"three", kind="text/event-stream", last=True)

    said = {}
    for version in (b"1.1", b"1.0"):
        talk = Talk(serve)
        talk.say(b"GET /a HTTP/%b\r\nConnection: keep-alive\r\n\r\n" % version)
        await rounds()
        said[version] = bytes(talk.wire.sent), talk.wire.closed
    fixed = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n%bDate: now\r\n\r\n"
    chunked = fixed % b"Transfer-Encoding: chunked\r\n"
    assert said[b"1.1"] == (b"HTTP/1.1 200 OK\r\n" + chunked + b"3\r\none\r\n5\r\nthree\r\n0\r\n\r\n", "")
    assert said[b"1.0"] == (b"HTTP/1.0 200 OK\r\n" + fixed % b"" + b"onethree", "closed")


async def test_a_fault_costs_the_connection_and_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(request: Request) -> Answer:
        raise RuntimeError(f"secret {request.headers['Authorization']}")

    talk = Talk(serve)
    talk.say(b"GET /a HTTP/1.1\r\nAuthorization: key\r\n\r\n")
    await rounds()
    assert talk.wire.closed == "aborted" and talk.wire.sent == b""
    assert [record.getMessage() for record in caplog.records] == ["a connection failed: RuntimeError"]


async def test_a_fault_in_the_middle_of_a_stream_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(request: Request) -> Answer:
        await request.stream(b"one", kind="text/event-stream")
        return MALFORMED

    talk = Talk(serve)
    talk.say(GET)
    await rounds()
    assert talk.wire.closed == "aborted" and talk.wire.sent.endswith(b"3\r\none\r\n")


async def test_a_listener_that_closes_lets_what_is_in_service_be_answered() -> None:
    release, going = asyncio.Event(), asyncio.Event()

    async def serve(request: Request) -> Answer:
        if request.path == "/b":
            going.set()
            await release.wait()
        return Answer(b"done")

    listener = Listener(serve, Counter())
    port = await listener.listen(host="127.0.0.1", port=0)
    idle, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = asyncio.ensure_future(exchange(port, GET + POST))
    await going.wait()
    closing = asyncio.ensure_future(listener.close())
    assert await idle.read() == b""
    writer.close()
    release.set()
    assert await asked == [(200, "", b"done"), (200, "close", b"done")]
    await closing
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)
    assert listener.connections == set()


async def test_a_listener_that_closes_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_agl.gateway.http.listener.SHUTDOWN_SECONDS", 0.0)
    going, cancelled = asyncio.Event(), []

    async def serve(request: Request) -> Answer:
        going.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(request.path)
        return Answer(b"")

    listener = Listener(serve, Counter())
    port = await listener.listen(host="127.0.0.1", port=0)
    asked = asyncio.ensure_future(exchange(port, GET))
    await going.wait()
    await listener.close()
    assert cancelled == ["/a"] and await asked == []
