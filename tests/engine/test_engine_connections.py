"""Kept-alive connections, against servers that answer in every way HTTP allows, and some it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from slime_agl.engine import connections
from slime_agl.engine.connections import ConnectionBroke, Connections, NotConnected, Posted

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers the n-th request of all its connections with `answers[n]`; None closes, a callable writes for itself."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.heads: list[bytes] = []
        self.accepted = 0
        self.ended = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    async def end(self) -> None:
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                answer = self.answers.pop(0)
                if callable(answer):
                    await answer(writer)
                elif answer is not None:
                    writer.write(answer)
                    if b"Content-Length" in answer or b"chunked" in answer:
                        continue
                return
        except (asyncio.IncompleteReadError, ConnectionResetError):
            self.ended.set()
        except asyncio.CancelledError:
            pass  # only `end` cancels
        finally:
            writer.close()


async def post(posts: Connections, url: str, body: bytes, headers: dict[str, str] | None = None, **options) -> Posted:
    return await posts.post(url, [body], headers, **{"read": lambda answer: answer, **options})


Serve = Callable[[Server], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(server: Server) -> str:
            listening = await asyncio.start_server(server, "127.0.0.1", 0)
            stack.push_async_callback(server.end)
            stack.callback(listening.close)
            return f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/generate"

        yield start


@pytest.fixture
async def posts() -> AsyncIterator[Connections]:
    found = Connections()
    yield found
    await found.close()


async def test_a_connection_serves_one_post_after_another(serve: Serve, posts: Connections) -> None:
    server = Server(*[ANSWER] * 3)
    url = await serve(server)
    for number in range(3):
        assert await post(posts, url, b"body %d" % number, {"X-Key": "a"}) == Posted(200, b"ok")
    assert (server.accepted, server.bodies) == (1, [b"body 0", b"body 1", b"body 2"])
    assert server.heads[0].startswith(b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:") and b"X-Key: a" in server.heads[0]


async def test_posts_at_the_same_time_have_a_connection_each(serve: Serve, posts: Connections) -> None:
    server = Server(*[ANSWER] * 5)
    url = await serve(server)
    await asyncio.gather(*(post(posts, url, b"x") for _ in range(5)))
    assert server.accepted == 5


async def test_no_more_posts_than_allowed_are_on_the_wire(serve: Serve) -> None:
    posts, server = Connections(limit=1), Server(*[ANSWER] * 4)
    url = await serve(server)
    await asyncio.gather(*(post(posts, url, b"x") for _ in range(4)))
    await posts.close()
    assert (server.accepted, len(server.bodies)) == (1, 4)


async def test_a_connection_that_was_idle_too_long_is_not_used(
    serve: Serve, posts: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(ANSWER, ANSWER)
    url = await serve(server)
    await post(posts, url, b"x")
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
    await post(posts, url, b"x")
    await server.ended.wait()
    assert server.accepted == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", Posted(200, b"abc")),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ANSWER, Posted(200, b"ok")),
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy", Posted(503, b"busy")),
        (b"HTTP/1.1 307 Go\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", Posted(307, b"")),
        (b"HTTP/1.0 200 OK\r\n\r\nas long as it lasts", Posted(200, b"as long as it lasts")),
    ],
)
async def test_answers_of_every_shape_are_read(
    serve: Serve, posts: Connections, answer: bytes, expected: Posted
) -> None:
    server = Server(answer, ANSWER)
    url = await serve(server)
    assert await post(posts, url, b"x") == expected
    assert await post(posts, url, b"y") == Posted(200, b"ok"), "what comes after is not disturbed"


async def test_an_answer_in_single_bytes_is_read(serve: Serve, posts: Connections) -> None:
    async def drop_by_drop(writer: asyncio.StreamWriter) -> None:
        for at in range(len(ANSWER)):
            writer.write(ANSWER[at : at + 1])
            await writer.drain()

    assert await post(posts, await serve(Server(drop_by_drop)), b"x") == Posted(200, b"ok")


async def test_a_long_body_arrives_whole(serve: Serve, posts: Connections) -> None:
    server, body = Server(ANSWER), bytes(range(256)) * 40_000
    assert (await post(posts, await serve(server), body)).status == 200
    assert server.bodies == [body]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Len",
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nX: y\r\nContent-Ty",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"220 mail.example ESMTP\r\n",
    ],
)
async def test_an_answer_that_breaks_off_is_an_error(
    serve: Serve, posts: Connections, answer: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(answer, ANSWER)
    url = await serve(server)
    with pytest.raises(ConnectionBroke):
        await post(posts, url, b"x")
    assert (await post(posts, url, b"x")).status == 200
    assert caplog.records == [], "nothing failed but the post"


async def test_a_body_that_breaks_off_is_an_error(serve: Serve, posts: Connections) -> None:
    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await writer.drain()

    with pytest.raises(ConnectionBroke, match="closed by the other side"):
        await post(posts, await serve(Server(half)), b"x")


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next(serve: Serve, posts: Connections) -> None:
    server = Server(ANSWER + ANSWER, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright")
    url = await serve(server)
    await post(posts, url, b"x")
    assert (await post(posts, url, b"y")).body == b"right"


async def test_a_post_that_is_given_up_takes_its_connection_along(serve: Serve, posts: Connections) -> None:
    asked = asyncio.Event()

    async def never(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    server = Server(never, ANSWER)
    url = await serve(server)
    call = asyncio.ensure_future(post(posts, url, b"x"))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await post(posts, url, b"x")).status == 200
    assert server.accepted == 2


async def test_where_nobody_listens_nothing_is_sent(serve: Serve, posts: Connections) -> None:
    listening = await asyncio.start_server(Server(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    with pytest.raises(NotConnected, match=f"127.0.0.1:{port}"):
        await post(posts, f"http://127.0.0.1:{port}/generate", b"x")


async def test_a_header_cannot_bring_another(serve: Serve, posts: Connections) -> None:
    url = await serve(Server(ANSWER))
    with pytest.raises(ValueError, match="line break"):
        await post(posts, url, b"x", {"X-Key": "a\r\nX-Other: b"})


async def test_what_comes_between_two_posts_ends_the_connection(serve: Serve, posts: Connections) -> None:
    """Half an answer that nobody asked for, which the rest of would be completed by the next request's."""
    written, late = asyncio.Event(), b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nla"

    async def answers_twice(writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER)
        await asyncio.sleep(0)
        writer.write(late)
        await writer.drain()
        written.set()
        await asyncio.Event().wait()

    server = Server(answers_twice, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright")
    url = await serve(server)
    assert (await post(posts, url, b"x")).body == b"ok"
    await written.wait()
    for _ in range(10):  # what the server has written is read in the next passes of the loop
        await asyncio.sleep(0)
    assert not any(connection.reusable for connection in posts._open)
    assert (await post(posts, url, b"y")).body == b"right"
    assert server.accepted == 2


async def test_the_beginning_of_a_second_answer_ends_the_connection(serve: Serve, posts: Connections) -> None:
    server = Server(ANSWER + b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright")
    url = await serve(server)
    assert (await post(posts, url, b"x")).body == b"ok"
    assert (await post(posts, url, b"y")).body == b"right"
    assert server.accepted == 2


async def test_an_answer_that_cannot_be_read_takes_its_connection_along(serve: Serve, posts: Connections) -> None:
    server = Server(ANSWER, ANSWER)
    url = await serve(server)

    def wrong(_: Posted) -> None:
        raise ValueError("not mine")

    with pytest.raises(ValueError, match="not mine"):
        await post(posts, url, b"x", read=wrong)
    assert (await post(posts, url, b"x")).body == b"ok"
    assert server.accepted == 2


def endless(begin: bytes, piece: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()

    return write


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536), "bytes and goes on; at most 100000 can be true"),
        (
            endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"4\r\nabcd\r\n" * 4096),
            "bytes and goes on; at most 100000",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n", "says it has 100001 bytes; at most 100000"),
        (endless(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 4096), "headers have .* bytes and go on; read are 65536"),
        (endless(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 65536), "headers have .* bytes and go on"),
        (endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 4096), "headers have .* bytes and go on"),
    ],
)
async def test_an_answer_without_end_is_cut_off(serve: Serve, posts: Connections, answer: object, words: str) -> None:
    url = await serve(Server(answer, ANSWER))
    with pytest.raises(ConnectionBroke, match=words):
        await post(posts, url, b"x", largest=100_000)
    assert (await post(posts, url, b"y")).body == b"ok"


async def test_an_answer_that_drips_is_given_up(
    serve: Serve, posts: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.01)

    async def drips(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nd")
        await asyncio.Event().wait()

    with pytest.raises(ConnectionBroke, match="began 0.01 s ago and has not ended, .* bytes so far"):
        await post(posts, await serve(Server(drips)), b"x")
