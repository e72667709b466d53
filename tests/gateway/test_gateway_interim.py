"""Slow answers: clients that support it get interim responses, and the status is never a guess."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp
import httpx
import pytest
import pytest_asyncio

from slime_agl.gateway.http.app import PROCESSING

ASK = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
SENDS = {"httpx": "python-httpx/0.28", "openai": "AsyncOpenAI/Python 2.8.0", "requests": "python-requests/2.32"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch, fake_sglang: Any) -> None:
    monkeypatch.setattr("slime_agl.gateway.http.app.INTERIM_SECONDS", 0.001)
    fake_sglang.answer_with(lambda request: "said").hold()


Asks = Callable[[str], Awaitable[asyncio.StreamReader]]


@pytest_asyncio.fixture
async def ask(bench: Any) -> AsyncIterator[Asks]:
    """`ask(user_agent)` sends a request, and gives what reads its answer byte by byte."""
    await bench.open()
    writers: list[asyncio.StreamWriter] = []

    async def send(agent: str) -> asyncio.StreamReader:
        url, body = urlsplit(f"{bench.url()}/chat/completions"), json.dumps(ASK)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writers.append(writer)
        writer.write(_request(url, bench.keys["at-1"], agent, body))
        return reader

    yield send
    for writer in writers:
        writer.close()
        await writer.wait_closed()


def _request(url: SplitResult, key: str, agent: str, body: str) -> bytes:
    head = {
        "Host": url.netloc,
        "User-Agent": agent,
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
    }
    lines = [f"{name}: {value}" for name, value in {**head, "Content-Length": len(body), "Connection": "close"}.items()]
    return "\r\n".join([f"POST {url.path} HTTP/1.1", *lines, "", body]).encode()


async def kept_alive(reader: asyncio.StreamReader, times: int = 3) -> None:
    assert await reader.readexactly(times * len(PROCESSING)) == PROCESSING * times


async def final(reader: asyncio.StreamReader) -> str:
    """The status line that is no interim one."""
    lines = [line for line in (await reader.read()).decode().split("\r\n") if line.startswith("HTTP/1.1")]
    return next(line for line in lines if " 102 " not in line)


@pytest.mark.parametrize("name", ["httpx", "openai"])
async def test_a_held_turn_keeps_its_connection_alive_and_has_its_own_status(ask, fake_sglang, name: str):
    reader = await ask(SENDS[name])
    await kept_alive(reader)
    fake_sglang.release()
    assert await final(reader) == "HTTP/1.1 200 OK"


async def test_a_turn_that_fails_after_a_while_is_no_success(bench, ask):
    reader = await ask(SENDS["httpx"])
    await kept_alive(reader)
    await bench.seal()
    assert await final(reader) == "HTTP/1.1 409 Conflict"


async def test_clients_read_over_it(bench, ask, fake_sglang):
    headers = {"Authorization": f"Bearer {bench.keys['at-1']}"}
    url = f"{bench.url()}/chat/completions"
    pace = await ask(SENDS["httpx"])
    async with httpx.AsyncClient(headers=headers) as plain, aiohttp.ClientSession(headers=headers) as other:
        asked = [
            asyncio.ensure_future(bench.client().chat.completions.create(**ASK)),
            asyncio.ensure_future(plain.post(url, json=ASK)),
            asyncio.ensure_future(other.post(url, json=ASK)),
        ]
        await fake_sglang.requests_arrived(4)
        await kept_alive(pace, 20)
        fake_sglang.release()
        openais, plains, others = await asyncio.gather(*asked)
        assert openais.choices[0].message.content == "said"
        assert plains.status_code == others.status == 200
        assert [answer["choices"][0]["message"]["content"] for answer in (plains.json(), await others.json())] == [
            "said"
        ] * 2


async def test_clients_that_would_take_it_for_the_answer_get_none(ask, fake_sglang):
    reader, pace = await ask(SENDS["requests"]), await ask(SENDS["httpx"])
    await fake_sglang.requests_arrived(2)
    await kept_alive(pace, 20)
    fake_sglang.release()
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
