"""Access: agents, with their key or a placeholder; never a web page, by whatever name it reaches this machine."""

from __future__ import annotations

import socket
from typing import Any

import aiohttp
import pytest

from slime_agl.gateway.door import Door
from slime_agl.gateway.refusal import Refusal

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def post(bench: Any, headers: dict[str, str], method: str = "POST", path: str = "") -> tuple[int, Any]:
    url = path or f"{bench.url()}/chat/completions"
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer dummy"}) as http,
        http.request(method, url, json=BODY if method == "POST" else None, headers=headers) as response,
    ):
        assert not [name for name in response.headers if name.startswith("Access-Control")]
        return response.status, await response.json()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost.evil.example"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": "10.0.0.1"},
        {"Host": "[2001:db8::1]:80"},
        {"Host": ""},
        {"Host": "127.0.0.1:port"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "same-origin"},
    ],
)
async def test_what_a_page_sends_is_refused_whatever_its_key(bench, fake_sglang, headers):
    await bench.open()
    own = {"Authorization": f"Bearer {bench.keys['at-1']}"}
    for key in ({}, own):
        status, answer = await post(bench, headers | key)
        assert (status, answer["error"]["code"]) == (403, "forbidden")
    for path in ("/health", "/v1/models", "/nothing"):
        assert (await post(bench, headers, "GET", bench.gateway.url + path))[0] == 403
    assert fake_sglang.requests == []


async def test_a_page_that_asks_first_is_not_let_in(bench):
    await bench.open()
    asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert (await post(bench, asks, "OPTIONS"))[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:80", "127.0.0.2:9", "localhost."])
@pytest.mark.parametrize("more", [{}, {"Sec-Fetch-Mode": "cors"}, {"Sec-Fetch-Site": "none"}])
async def test_programs_on_this_machine_are_served(bench, fake_sglang, host, more):
    """Node's fetch sends Sec-Fetch-Mode."""
    fake_sglang.say("hello")
    await bench.open()
    assert (await post(bench, {"Host": host} | more))[0] == 200


async def test_without_any_key_nothing_can_be_read_that_a_page_could_ask_for(bench):
    await bench.open()
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{bench.url()}/models") as refused:
            assert refused.status == 401
        async with http.get(f"{bench.url()}/models", headers={"x-api-key": "dummy"}) as response:
            assert response.status == 200


@pytest.mark.parametrize("url", ["http://gateway.example:8080", "https://10.1.2.3/agl"])
async def test_behind_a_public_url_its_host_is_served_and_placeholders_are_not(make_bench, fake_sglang, url):
    bench = make_bench(public_url=url)
    local = make_bench().gateway.url  # reaches its own gateway; the first one's port stands in its socket
    assert bench.gateway.url == url and local.startswith("http://127.0.0.1")
    door = Door("127.0.0.1", url)
    door.check({"Host": url.split("/")[2]})
    door.check({"Host": "127.0.0.1:80"})
    with pytest.raises(Refusal, match="public_url"):
        door.check({"Host": "other.example"})
    assert bench.gateway._sessions._keys_required


async def test_a_public_url_may_name_machine_and_port(make_bench, fake_sglang):
    bench = make_bench(public_url="http://{host}:{port}/agl")
    port = bench.gateway.url.rpartition(":")[2].removesuffix("/agl")
    assert bench.gateway.url == f"http://{socket.gethostname()}:{port}/agl" and int(port) > 0
    async with aiohttp.ClientSession() as http:
        headers = {"Host": f"{socket.gethostname()}:{port}"}
        async with http.get(f"http://127.0.0.1:{port}/health", headers=headers) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("bound", "host", "passes"),
    [
        ("0.0.0.0", "10.1.2.3:80", True),
        ("0.0.0.0", "evil.example", False),
        ("::", "[2001:db8::1]:80", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("box.example", "box.example:80", True),
        ("box.example", "evil.example", False),
        ("127.0.0.1", "10.1.2.3", False),
    ],
)
def test_beyond_loopback_addresses_pass_and_foreign_names_do_not(bound, host, passes):
    door = Door(bound)
    for _ in range(2):
        if passes:
            door.check({"Host": host})
        else:
            with pytest.raises(Refusal):
                door.check({"Host": host})
