"""Limits per attempt: bytes, threads, connections. Others are served meanwhile."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from typing import Any

import aiohttp
import openai
import pytest

from slime_agl.gateway import bodies
from slime_agl.gateway.bodies import BESIDE, MIB, Bounds, Place, Served
from slime_agl.gateway.http import connections
from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.turn.encoders import Encoders
from slime_agl.gateway.turn.long_texts import check_length

ASK: list[Any] = [{"role": "user", "content": "hi"}]
PATHS = {
    "chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "completions": lambda text: {"prompt": text},
    "responses": lambda text: {"input": text},
    "messages": lambda text: {"max_tokens": 9, "messages": [{"role": "user", "content": text}]},
}


PLAIN = {"Content-Type": "application/json"}


def stream(body: dict[str, Any]) -> io.BytesIO:
    """A body that the client sends in pieces, as it wants large ones."""
    return io.BytesIO(json.dumps(body).encode())


def connect(bench: Any) -> Any:
    host, port = bench.gateway.url.removeprefix("http://").split(":")
    return asyncio.open_connection(host, int(port))


def head(bench: Any, *lines: str, path: str = "chat/completions") -> bytes:
    target = f"{bench.url().removeprefix(bench.gateway.url)}/{path}"
    fixed = (
        f"POST {target} HTTP/1.1",
        "Host: localhost",
        "Authorization: Bearer dummy",
        "Content-Type: application/json",
    )
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


async def status_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
    return int(lines[0].split()[1]), json.loads(await reader.readexactly(length))


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_larger_than_the_context_can_hold_is_refused_before_it_is_sent(bench, fake_sglang, path):
    await bench.open(context_limit=1000)
    size = BESIDE + 64 * 1000
    reader, writer = await connect(bench)
    writer.write(head(bench, f"Content-Length: {size + 1}", path=path))
    status, answer = await status_of(reader)
    said = answer["error"]["message"]
    assert status == 400 and str(size + 1) in said and str(size) in said and "1000 tokens" in said
    if path == "messages":
        assert said.startswith("prompt is too long")
    else:
        assert answer["error"]["code"] == "context_length_exceeded"
    writer.close()
    left = await bench.seal()
    assert left.counters["context_overflow"] == 1 and left.ledger.turns == []


async def test_a_body_of_unknown_length_is_read_no_further_than_that(bench, monkeypatch):
    monkeypatch.setattr(bodies, "BESIDE", 1000)
    await bench.open(context_limit=10)
    reader, writer = await connect(bench)
    writer.write(head(bench, "Transfer-Encoding: chunked") + b"1000\r\n" + b"x" * 4096 + b"\r\n")
    status, answer = await status_of(reader)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    writer.close()


@pytest.mark.parametrize("path", PATHS)
async def test_a_long_text_is_not_encoded_to_learn_that_it_is_too_long(bench, fake_sglang, monkeypatch, path):
    renderer, longest = bench.gateway._parts.renderer, 0
    encode = renderer.encode

    def watched(text: str, **more: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(text))
        return encode(text, **more)

    monkeypatch.setattr(renderer, "encode", watched)
    await bench.open(context_limit=1000)
    for text, words in (("a b c " * 5_000, "at least 6667"), ("a b c " * 200_000, "1200000 characters")):
        async with (
            aiohttp.ClientSession(headers={"Authorization": "Bearer dummy"}) as http,
            http.post(
                f"{bench.url()}/{path}", data=stream({"model": "m"} | PATHS[path](text)), headers=PLAIN
            ) as response,
        ):
            assert response.status == 400 and words in await response.text()
    assert longest <= 8000 and fake_sglang.requests == []


async def test_a_conversation_that_is_refused_so_ends_full(bench, fake_sglang):
    fake_sglang.say("hello")
    client = await bench.open(context_limit=1000)
    first = await client.chat.completions.create(model="m", messages=ASK)
    told = [*ASK, first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "a b " * 10_000}]
    with pytest.raises(openai.BadRequestError, match="at least"):
        await client.chat.completions.create(model="m", messages=told)
    left = await bench.seal()
    assert left.ledger.full == {0} and left.counters["context_overflow"] == 1


def test_what_fits_is_never_refused_for_its_length():
    for tokens in (10, 1000):
        check_length(["word " * 12] * (tokens // 12), tokens, lambda text: text.split())
    with pytest.raises(Refusal, match=r"10 tokens.*at least 75 tokens"):
        check_length(["a"] * 80, 10, lambda text: [1])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": ASK * 1001}, "at least 1001 tokens"),
        ({"messages": ASK, "tools": [{"type": "function", "function": {"name": "f"}}] * 1001}, "at least 1001 tokens"),
        ({"prompt": ["x"] * 100, "n": 100}, "10000 answers, one request may ask for 4096"),
    ],
)
async def test_more_messages_tools_or_answers_than_anybody_asks_for_are_refused(bench, fake_sglang, body, words):
    await bench.open(context_limit=1000)
    path = "completions" if "prompt" in body else "chat/completions"
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer dummy"}) as http,
        http.post(f"{bench.url()}/{path}", json={"model": "m"} | body) as response,
    ):
        assert response.status == 400 and words in await response.text()
    assert fake_sglang.requests == []


def test_long_contexts_with_images_fit():
    assert Bounds(32_768).body == 18 * MIB and Bounds(1_000_000).body > 64 * MIB
    assert Bounds(32_768).with_images == Bounds(None).with_images == 512 * MIB
    screenshots = b'{"messages":[' + b",".join([b'"data:image/png;base64,' + b"A" * MIB + b'"'] * 40) + b"]}"
    Bounds(32_768).check_structure(screenshots)
    with pytest.raises(Refusal, match="commas and brackets"):
        Bounds(32_768).check_structure(b"[{}," * 5 * MIB)


async def test_a_body_that_does_not_arrive_is_given_up(bench, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.0)
    monkeypatch.setattr(bodies, "BYTES_PER_SECOND", float("inf"))
    await bench.open()
    reader, writer = await connect(bench)
    writer.write(head(bench, "Content-Length: 100") + b'{"model":')
    status, answer = await status_of(reader)
    assert (status, answer["error"]["code"]) == (408, "request_timeout")
    writer.close()


@pytest.mark.parametrize("begun", [b"", b"POST /rollout/ro-1/att", b"POST / HTTP/1.1\r\nHost: localhost\r\nX: "])
async def test_half_open_connections_are_closed_and_others_served_meanwhile(bench, fake_sglang, monkeypatch, begun):
    fake_sglang.say("hello")
    client = await bench.open()
    opened = [await connect(bench) for _ in range(200)]
    for _, writer in opened:
        writer.write(begun)
    await client.chat.completions.create(model="m", messages=ASK)
    server = bench.gateway._listener
    await bench.gateway._call(lambda _: looks(server))
    assert [await reader.read() for reader, _ in opened] == [b""] * 200
    for _, writer in opened:
        writer.close()
    fake_sglang.say("still here")
    assert (await client.chat.completions.create(model="m", messages=[*ASK, *ASK])).id
    assert (await bench.gateway.counters())["unfinished_requests"] == 200


@pytest.mark.parametrize("length", ["Content-Length: 18000000", "Transfer-Encoding: chunked"])
async def test_bodies_that_are_announced_and_never_sent_keep_nobody_waiting(bench, fake_sglang, length):
    fake_sglang.say("hello")
    client = await bench.open()
    opened = [await connect(bench) for _ in range(50)]
    for _, writer in opened:
        writer.write(head(bench, length))
    served = bench.gateway._sessions._open[("ro-1", "at-1")].served
    while served._count + len(served._waiting or ()) < 50:
        await asyncio.sleep(0)
    async with asyncio.timeout(60):  # a fuse: bodies have longer to arrive
        await client.chat.completions.create(model="m", messages=ASK)
    for _, writer in opened:
        writer.close()


async def test_the_second_head_of_a_connection_has_no_longer_than_the_first(bench):
    reader, writer = await connect(bench)
    for _ in range(2):
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await status_of(reader))[0] == 200
        await bench.gateway._call(lambda _: looks(bench.gateway._listener))
    writer.write(b"GET /health HTTP/1.1\r\nHost: loc")
    await writer.drain()
    while not any(connection.in_head for connection in bench.gateway._listener.connections):
        await asyncio.sleep(0)
    await bench.gateway._call(lambda _: looks(bench.gateway._listener))
    assert await reader.read() == b""
    writer.close()


async def looks(server: Any) -> None:
    """What the watch does in the time that a head has."""
    for _ in range(connections.MOST_CHECKS):
        for connection in server.connections:
            connection.check()


async def test_requests_of_an_attempt_wait_when_too_many_are_served(monkeypatch):
    monkeypatch.setattr(bodies, "MOST_SERVED", 2)
    monkeypatch.setattr(bodies, "MOST_WAITING", 3)
    monkeypatch.setattr(bodies, "SERVED_BYTES", 100)
    served, order = Served(), []

    async def serve(number: int, size: int) -> None:
        await served.enter(size)
        order.append(number)

    tasks = [asyncio.ensure_future(serve(number, 60)) for number in range(4)]
    await asyncio.sleep(0)
    assert order == [0], "two together are too large"
    with pytest.raises(Refusal, match="1 requests of this attempt are served and 3 wait") as refused:
        await asyncio.gather(*(served.enter(1) for _ in range(1)))
    assert (refused.value.status, refused.value.retry) == (429, True)
    tasks[1].cancel()
    await asyncio.sleep(0)
    served.leave(60)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == [0, 2]
    served.resize(60, 10)
    await asyncio.sleep(0)
    assert order == [0, 2, 3]
    served.leave(10)
    served.leave(60)
    await served.enter(100)


async def test_only_a_body_that_arrives_takes_its_room(monkeypatch):
    monkeypatch.setattr(bodies, "FIRST_BYTES", 1)
    monkeypatch.setattr(bodies, "SERVED_BYTES", 100)
    served = Served()
    places = [Place(served, 80) for _ in range(5)]
    for place in places:
        await place.enter()
    await places[0].grow()
    second = asyncio.ensure_future(places[1].grow())
    await asyncio.sleep(0)
    assert not second.done()
    places[0].settle(3)
    await second
    for place in places:
        place.leave()
    await served.enter(100)


async def test_one_attempts_work_leaves_a_thread_for_others():
    encoders, going, release = Encoders(threads=2), threading.Semaphore(0), threading.Event()

    def slow() -> str:
        going.release()
        release.wait(30)
        return "slow"

    hostile = [asyncio.ensure_future(encoders.run("hostile", slow)) for _ in range(50)]
    await asyncio.to_thread(going.acquire)
    assert await encoders.run("polite", lambda: "quick") == "quick"
    hostile[7].cancel()
    waiting = asyncio.ensure_future(encoders.run("polite", lambda: "again"))
    assert await waiting == "again"
    assert not going.acquire(blocking=False), "one at a time"
    release.set()
    done = await asyncio.gather(*hostile, return_exceptions=True)
    assert [one for one in done if one != "slow"] == [done[7]] and isinstance(done[7], asyncio.CancelledError)
    with pytest.raises(ZeroDivisionError):
        await encoders.run("polite", lambda: 1 // 0)
    assert await encoders.run("polite", lambda: "still") == "still"
    encoders.close()


async def test_what_many_sessions_took_is_given_back(bench, fake_sglang, monkeypatch):
    """Connections, threads and sessions are as many as before; memory is for scripts/bench to measure."""
    monkeypatch.setattr("slime_agl.engine.connections.IDLE_SECONDS", 0.0)
    fake_sglang.answer_with(lambda request: "hello")
    server, names = bench.gateway._listener, [f"at-{number}" for number in range(48)]

    async def live(name: str) -> None:
        client = await bench.open(name)
        told: list[Any] = [{"role": "user", "content": f"{name}: " + "so on " * 1000}]
        for _ in range(2):
            answer = await client.chat.completions.create(model="m", messages=told)
            told += [answer.choices[0].message.model_dump(exclude_none=True), *ASK]
        await client.close()
        assert len((await bench.seal(name)).ledger.turns) == 2

    await live("warm")
    threads = threading.active_count()
    await asyncio.gather(*map(live, names))
    assert len(bench.gateway._sessions) == await bench.gateway.in_flight() == 0
    assert threading.active_count() <= threads + 1, "two threads encode, of which the first session needed one"
    while server.connections:
        await asyncio.sleep(0)
    while bench.gateway._parts.engine._posts._open:
        await asyncio.sleep(0)
