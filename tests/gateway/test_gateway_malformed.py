"""Invalid request bodies, and values at the limits of JSON libraries."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import aiohttp
import pytest

from slime_agl.gateway import repeats

BASES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi"},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "max_tokens": 8000, "messages": [{"role": "user", "content": "hi"}]},
}


def nested(depth: int) -> dict[str, Any]:
    value: Any = {}
    for _ in range(depth):
        value = {"in": value}
    return value


async def post(bench: Any, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {bench.keys['at-1']}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{bench.url()}/{path}", json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


DEEP, LARGE = nested(300), 10**30
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize("arguments", [{"a": LARGE, "b": -LARGE}, DEEP], ids=["large", "deep"])
async def test_arguments_of_any_size_and_depth_reach_the_agent_and_come_back(bench, script, fake_sglang, arguments):
    script([("add", arguments)], "done")
    await bench.open(response_limit=8000)
    asked = [{"role": "user", "content": "hi"}]
    tools = [{"name": "add", "input_schema": {"type": "object"}}]
    body = BASES["messages"] | {"messages": asked, "tools": tools}
    status, message = await post(bench, "messages", body)
    assert status == 200, message
    assert message["content"][0]["input"] == arguments
    result = {"type": "tool_result", "tool_use_id": message["content"][0]["id"], "content": "3"}
    told = [*asked, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": [result]}]
    assert (await post(bench, "messages", body | {"messages": told}))[0] == 200
    assert (await bench.prove(fake_sglang)).one_segment(2)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [("GET", "responses", 405, "invalid_request_error"), ("POST", "nothing", 404, "not_found_error")],
)
async def test_addresses_and_methods_that_are_not_served_are_told_apart(bench, method, path, status, kind):
    await bench.open()
    async with aiohttp.ClientSession() as http, http.request(method, f"{bench.url()}/{path}") as response:
        assert (response.status, (await response.json())["error"]["type"]) == (status, kind)


@pytest.mark.parametrize("path", [*BASES, "messages/count_tokens"])
@pytest.mark.parametrize(
    ("kind", "encoding", "status", "words"),
    [
        ("application/json", "gzip", 415, "gzip"),
        ("application/json", "deflate", 415, "deflate"),
        ("application/json", "br", 415, "br"),
        ("application/json", "identity", 400, "not JSON"),
        ("text/plain", "identity", 415, "text/plain"),
        ("application/x-www-form-urlencoded", "identity", 415, "application/json"),
        ("application/jsonp", "identity", 415, "application/json"),
        ("", "identity", 415, "application/json"),
    ],
)
async def test_a_body_that_is_not_plain_json_is_refused(bench, fake_sglang, path, kind, encoding, status, words):
    await bench.open()
    headers = {"Content-Encoding": encoding, "Authorization": f"Bearer {bench.keys['at-1']}", "Content-Type": kind}
    body = json.dumps(BASES["messages"] | {"model": "m"}).encode() if status == 415 else b"no such thing"
    async with (
        aiohttp.ClientSession(skip_auto_headers=["Content-Encoding"]) as http,
        http.post(f"{bench.url()}/{path}", data=body, headers=headers) as response,
    ):
        assert (response.status, response.content_type) == (status, "application/json")
        assert words in (await response.json())["error"]["message"]
    assert fake_sglang.requests == []


async def test_json_may_say_its_charset(bench, fake_sglang):
    fake_sglang.say("hello")
    await bench.open()
    headers = {"Authorization": "Bearer dummy", "Content-Type": "Application/JSON; charset=utf-8"}
    body = json.dumps(BASES["chat/completions"]).encode()
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{bench.url()}/chat/completions", data=body) as response,
    ):
        assert response.status == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        *((path, {"model": 5}, "model") for path in BASES),
        *((path, {"chat_template_kwargs": DEEP}, "chat_template_kwargs") for path in BASES if path != "completions"),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [CALL, "x"]}]},
            "messages[0].tool_calls",
        ),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": CALL}]}, "messages[0].tool_calls"),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [CALL | {"id": []}]}]},
            "messages[0].tool_calls",
        ),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": {}}]}]}, "messages"),
        ("chat/completions", {"stop_token_ids": [2**40]}, "stop_token_ids"),
        ("completions", {"prompt": [1, 2**31]}, "prompt"),
        ("responses", {"include": 5}, "include"),
        ("responses", {"include": [[]]}, "include"),
        (
            "messages",
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": [], "name": "a"}]}]},
            "messages[0].content[0]",
        ),
    ],
)
async def test_what_has_the_wrong_type_is_refused_by_name(bench, fake_sglang, path, body, param):
    await bench.open()
    for _ in range(2):  # the second time there is a turn that the messages are held against
        status, answer = await post(bench, path, BASES[path] | body)
        assert status == 400, answer
        if path == "messages":
            assert param in answer["error"]["message"]
        else:
            assert answer["error"]["param"] == param
        fake_sglang.say("hello")
        assert (await post(bench, path, BASES[path]))[0] == 200


SECRET = "sk-agl-never-to-be-logged"


async def raw(bench: Any, request: bytes, *, end: bool = False) -> bytes:
    """What comes back for these bytes until the gateway closes. end: nothing more will come from here."""
    host, port = bench.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        if end:
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def head(bench: Any, *lines: str, path: str = "", method: str = "POST") -> bytes:
    target = path or bench.url().removeprefix(bench.gateway.url) + "/chat/completions"
    host = bench.gateway.url.removeprefix("http://")
    fixed = (f"{method} {target} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close")
    return "\r\n".join([*fixed, *lines, "", ""]).encode("utf-8", "surrogateescape")


BODY = json.dumps(BASES["chat/completions"])
LENGTH = f"Content-Length: {len(BODY)}"


@pytest.mark.parametrize(
    "lines",
    [
        (f"Authorization: Bearer {SECRET}\x00",),
        (f"Authorization : Bearer {SECRET}",),
        (f"Authorization: Bearer {SECRET}\r\n folded",),
        (f"Bearer {SECRET}",),
        (f"Authorization: Bearer {SECRET}", "Content-Length: many"),
        (f"Authorization: Bearer {SECRET}", "Content-Length: 1", "Transfer-Encoding: chunked"),
        (f"Authorization: Bearer {SECRET}" + "x" * 9000,),
        (f"Authorization: Bearer {SECRET}", *(f"X-{number}: 1" for number in range(200))),
        (f"Authorization: Bearer {SECRET}", "Transfer-Encoding: gzip, chunked"),
    ],
)
async def test_a_malformed_head_is_refused_and_none_of_it_is_logged(bench, caplog, lines):
    caplog.set_level("DEBUG")
    await bench.open()
    answer = await raw(bench, head(bench, *lines) + BODY.encode())
    assert answer[9:12] == b"400" and b"application/json" in answer, answer
    assert SECRET not in caplog.text and SECRET.encode() not in answer
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


@pytest.mark.parametrize("key", ["schlüssel", "\udcff\udcfe", "鍵", "sk-agl-\udcff"])
@pytest.mark.parametrize("header", ["Authorization: Bearer ", "x-api-key: "])
async def test_a_key_that_is_not_ascii_is_a_key_like_another(make_bench, caplog, key, header):
    bench = make_bench(auth="required")
    await bench.open()
    answer = await raw(bench, head(bench, header + key, LENGTH) + BODY.encode())
    assert answer[9:12] == b"401", answer
    assert caplog.records == []


@pytest.mark.parametrize(
    "path",
    [
        "/%",
        "/%00",
        "/%ff%fe",
        "/v1/%zz",
        "/rollout/%ff/attempt/%00/v1/chat/completions",
        "/rollout/\udcff/attempt/a/v1/models",
        "/v1/models?%ff=%00",
        "/rollout/ro-1/attempt/at-1/v1/responses/%ed%a0%80",
        "/rollout/ro-1/attempt/at-1/v1/models/%0a%ff",
        "*",
        "//",
        "http://[::1",
        "/\u2028",
        "/rollout/..%2f..%2f/attempt/x/v1/models",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "BREW"])
async def test_no_address_is_a_failure_of_the_gateway(bench, caplog, method, path):
    await bench.open()
    answer = await raw(bench, head(bench, "Authorization: Bearer dummy", path=path, method=method))
    assert answer[9:10] in (b"2", b"4"), answer
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_requests_broken_at_random_are_refused_and_the_next_one_is_served(bench, fake_sglang, caplog):
    fake_sglang.answer_with(lambda request: "hello")
    await bench.open()
    whole = head(bench, f"Authorization: Bearer {bench.keys['at-1']}", LENGTH) + BODY.encode()
    chance = random.Random(7)
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(broken))
            kind = chance.randrange(3)
            if kind == 0:
                broken[at] = chance.randrange(256)
            elif kind == 1:
                del broken[at : at + chance.randint(1, 40)]
            else:
                broken[at:at] = chance.randbytes(chance.randint(1, 10))
        answer = await raw(bench, bytes(broken), end=True)
        assert answer[9:10] in (b"", b"2", b"4"), (bytes(broken), answer)
    assert (await raw(bench, whole))[9:12] == b"200"
    assert bench.keys["at-1"] not in caplog.text
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_malformed_call_is_refused_wherever_a_conversation_has_it(bench, script, monkeypatch):
    """Messages are checked once, whatever came of the request that had them first."""
    monkeypatch.setattr(repeats, "LEAST_HELD", 0)
    script("one", "two", "three")
    await bench.open(response_limit=8000)
    body = BASES["chat/completions"]
    good = [*body["messages"], {"role": "assistant", "content": "one"}, {"role": "user", "content": "on"}]
    bad = [*good, {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": 7}]}]
    for messages in (body["messages"], good):
        assert (await post(bench, "chat/completions", body | {"messages": messages}))[0] == 200
    for messages in (bad, [*bad, *good], bad):
        status, refused = await post(bench, "chat/completions", body | {"messages": messages})
        assert status == 400 and refused["error"]["param"] == "messages[3].tool_calls", refused
    assert (await post(bench, "chat/completions", body | {"messages": good}))[0] == 200
