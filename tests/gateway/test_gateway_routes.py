"""Paths and methods: which request reaches which handler, as HTTP says."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import aiohttp
import pytest

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()


async def ask(bench, method: str, path: str, **options) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer dummy"}) as http,
        http.request(method, bench.gateway.url + path, **options) as response,
    ):
        return response.status, await response.text()


def own(bench) -> str:
    return urlsplit(bench.url()).path.removesuffix("/v1")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("HEAD", "/health", 200),
        ("GET", "/health?verbose=1", 200),
        ("POST", "/health", 405),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/chat/completions", 404),
        ("GET", "/", 404),
        ("GET", "//", 404),
        ("GET", "{own}/v1/models", 200),
        ("HEAD", "{own}/v1/models", 200),
        ("GET", "{own}/v1/v1/models", 200),
        ("GET", "{own}/v1/v1/v1/models", 404),
        ("GET", "{own}/v1/models/policy", 200),
        ("GET", "{own}/v1/models/meta/policy", 200),
        ("GET", "{own}/v1/models/", 404),
        ("GET", "{own}/v1/responses/none", 404),
        ("GET", "{own}/v1/responses/none/items", 404),
        ("GET", "{own}/v1/chat/completions", 405),
        ("PUT", "{own}/v1/chat/completions", 405),
        ("DELETE", "{own}/v1/models", 405),
        ("GET", "{own}/v2/models", 404),
        ("GET", "{own}/v1", 404),
        ("GET", "/rollout/ro-1/attempts/at-1/v1/models", 404),
        ("GET", "/rollout/ro-1/attempt/nobody/v1/models", 404),
    ],
)
async def test_a_path_leads_to_its_handler_and_no_other(bench, method, path, status):
    await bench.open()
    found, text = await ask(bench, method, path.replace("{own}", own(bench)))
    assert found == status, text
    if status >= 400 and method != "HEAD":
        assert json.loads(text)["error"]["message"]


async def test_the_name_of_a_model_may_be_encoded(bench):
    await bench.open()
    status, text = await ask(bench, "GET", f"{own(bench)}/v1/models/meta%2Fa%20b")
    assert status == 200
    assert json.loads(text)["id"] == "meta/a b"


async def test_ids_may_be_encoded(bench):
    await bench.open("at 1/ä")
    status, text = await ask(bench, "GET", "/rollout/ro%2D1/attempt/at%201%2F%C3%A4/v1/models")
    assert status == 200, text


async def test_a_client_that_asks_whether_to_send_its_body_is_told_to(bench, fake_sglang):
    await bench.open()
    fake_sglang.say("hello")
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer dummy"}) as http:
        url = f"{bench.url()}/chat/completions"
        async with http.post(url, data=BODY, headers={"Content-Type": "application/json"}, expect100=True) as answer:
            assert answer.status == 200, await answer.text()
    assert len(fake_sglang.requests) == 1


async def test_any_other_expectation_is_refused(bench, fake_sglang):
    await bench.open()
    headers = {"Content-Type": "application/json", "Expect": "miracles"}
    status, text = await ask(bench, "POST", f"{own(bench)}/v1/chat/completions", data=BODY, headers=headers)
    assert status == 417
    assert "miracles" in json.loads(text)["error"]["message"]
    assert fake_sglang.requests == []


async def test_a_request_line_may_hold_the_whole_url(bench):
    await bench.open()
    where = urlsplit(bench.gateway.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(f"GET {bench.gateway.url}/health HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()
    writer.close()
