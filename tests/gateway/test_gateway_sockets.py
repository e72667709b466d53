"""Sockets that listen elsewhere: served like the gateway's own, and only what belongs to them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slime_agl.errors import SandboxError
from slime_agl.sandbox.bwrap import BwrapBackend
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.protocol import SandboxSpec
from slime_agl.sandbox.reach import Reach

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def under(bench: Any, name: str = "at-1") -> str:
    """An attempt's path, without the gateway's address and the version."""
    return bench.url(name).removeprefix(bench.gateway.url).removesuffix("/v1")


async def post(url: str, key: str = "dummy") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=BODY) as response:
        return response.status, await response.json()


@pytest.fixture
def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def test_a_socket_serves_its_attempt_and_no_other_path(bench, fake_sglang, listening):
    await bench.open()
    await bench.open("at-2")
    await bench.gateway.listen(listening, under(bench))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    fake_sglang.say("hello")
    assert (await post(f"{url}{under(bench)}/v1/chat/completions", bench.keys["at-1"]))[0] == 200
    foreign = [
        f"{under(bench, 'at-2')}/v1/chat/completions",
        f"{under(bench)}x/v1/chat/completions",
        "/v1/models",
        "/metrics",
        under(bench).replace("at-1", "%61t-2") + "/v1/chat/completions",
    ]
    for path in foreign:
        for key in ("dummy", bench.keys["at-2"]):
            status, answer = await post(url + path, key)
            assert (status, answer["error"]["code"]) == (403, "forbidden"), path
    assert len(fake_sglang.requests) == 1
    assert (await bench.gateway.counters())["foreign_paths"] == 2 * len(foreign)
    await bench.gateway.forget(listening)


async def test_a_forgotten_socket_is_closed_with_its_connections(bench, listening):
    await bench.open()
    address = listening.getsockname()
    await bench.gateway.listen(listening)
    async with aiohttp.ClientSession() as http:
        async with http.get(f"http://127.0.0.1:{address[1]}/health") as response:
            assert response.status == 200
        await bench.gateway.forget(listening)
        await bench.gateway.forget(listening)
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get(f"http://127.0.0.1:{address[1]}/health")
    async with aiohttp.ClientSession() as http, http.get(f"{bench.gateway.url}/health") as response:
        assert response.status == 200, "the gateway's own goes on"


async def test_a_stopped_gateway_has_closed_its_sockets(bench, listening):
    await bench.gateway.listen(listening)
    bench.gateway.stop()
    await bench.gateway.forget(listening)
    assert listening.fileno() == -1


async def test_a_sandbox_reaches_its_own_attempt_and_nothing_else(bench, fake_sglang, tmp_path: Path):
    try:
        BwrapBackend.check()
    except SandboxError as error:
        pytest.skip(str(error))
    await bench.open()
    await bench.open("at-2")
    backend = BwrapBackend(Home(str(tmp_path)), Reach(bench.gateway))
    code = """
import json, sys, urllib.error, urllib.request
url, key = sys.argv[1:]
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
request = urllib.request.Request(url, body, {"Content-Type": "application/json", "Authorization": "Bearer " + key})
try: print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
except urllib.error.URLError as error: print(getattr(error, "code", type(error.reason).__name__))
"""
    endpoint = bench.url().removesuffix("/v1")
    async with backend.sandbox(SandboxSpec(network="gateway", endpoint=endpoint)) as box:
        await box.write_file("/app/ask.py", code)
        assert box.endpoint == endpoint, "the same address inside"

        async def ask(path: str, key: str) -> str:
            url = bench.gateway.url + path
            return (await box.exec(f"python3 ask.py {url}/v1/chat/completions {key}", check=True))[1].strip()

        fake_sglang.say("hello")
        assert await ask(under(bench), bench.keys["at-1"]) == "hello"
        assert await ask(under(bench), bench.keys["at-2"]) == "401"
        assert await ask(under(bench, "at-2"), bench.keys["at-2"]) == "403"
        await box.set_network("none")
        assert await ask(under(bench), bench.keys["at-1"]) == "ConnectionRefusedError"
        assert box.endpoint == ""
        await box.set_network("gateway")
        fake_sglang.say("again")
        assert await ask(under(bench), bench.keys["at-1"]) == "again"
    await backend.close()
