"""The heads of answers."""

from __future__ import annotations

import asyncio
import json
from email.message import Message
from http.client import parse_headers
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import pytest

TEXT = "words, ünd mehr 日本語"


def request(bench: Any, version: str, *lines: str) -> bytes:
    url = urlsplit(f"{bench.url()}/chat/completions")
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    fixed = (
        f"POST {url.path} HTTP/{version}",
        f"Host: {url.netloc}",
        f"Authorization: Bearer {bench.keys['at-1']}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join([*fixed, *lines, "", ""]).encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[str, Message, dict[str, Any]]:
    """Status line, headers and body of the next answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, _, rest = head.partition(b"\r\n")
    headers = parse_headers(BytesIO(rest))
    return line.decode(), headers, json.loads(await reader.readexactly(int(headers["Content-Length"])))


@pytest.fixture
async def opened(bench: Any, fake_sglang: Any) -> Any:
    fake_sglang.answer_with(lambda request: TEXT)
    await bench.open()
    return bench


async def connected(bench: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = urlsplit(bench.gateway.url)
    return await asyncio.open_connection(url.hostname, url.port)


@pytest.mark.parametrize(("lines", "more"), [((), {}), (("Connection: close",), {"Connection": "close"})])
async def test_an_answer_says_what_and_how_much_it_is(
    opened: Any, lines: tuple[str, ...], more: dict[str, str]
) -> None:
    reader, writer = await connected(opened)
    writer.write(request(opened, "1.1", *lines))
    line, headers, body = await answer(reader)
    assert line == "HTTP/1.1 200 OK" and body["choices"][0]["message"]["content"] == TEXT
    assert headers.keys() == ["Content-Type", "Content-Length", "Date", *more]
    assert headers["Content-Type"] == "application/json" and dict(headers) == dict(headers) | more
    if more:
        assert await asyncio.wait_for(reader.read(), 10) == b"", "closed, as asked"
    writer.close()


async def test_the_date_is_that_of_the_answer(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = await connected(opened)
    dates = []
    for moment in (0.5, 0.9, 1.0):
        with monkeypatch.context() as patch:
            patch.setattr("slime_agl.gateway.http.requests.time.time", lambda moment=moment: moment + 784111777)
            writer.write(request(opened, "1.1"))
            dates.append((await answer(reader))[1]["Date"])
    writer.close()
    assert dates == ["Sun, 06 Nov 1994 08:49:37 GMT"] * 2 + ["Sun, 06 Nov 1994 08:49:38 GMT"]


async def test_an_old_client_is_answered_and_the_connection_closed(opened: Any) -> None:
    reader, writer = await connected(opened)
    writer.write(request(opened, "1.0"))
    line, _, body = await answer(reader)
    assert line == "HTTP/1.0 200 OK" and body["choices"][0]["message"]["content"] == TEXT
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_requests_sent_together_are_answered_in_order(opened: Any, fake_sglang: Any) -> None:
    reader, writer = await connected(opened)
    writer.write(request(opened, "1.1") * 3)
    answers = [await answer(reader) for _ in range(3)]
    writer.close()
    assert len({body["id"] for _, _, body in answers}) == 3
    assert [body["id"] for _, _, body in answers] == sorted(body["id"] for _, _, body in answers)
