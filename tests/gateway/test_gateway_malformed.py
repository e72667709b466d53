"""Bodies that no client should send, and values at the edge of what JSON libraries take."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

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


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_a_body_that_is_not_what_it_says_is_refused(bench, path, encoding):
    await bench.open()
    headers = {"Content-Encoding": encoding, "Authorization": f"Bearer {bench.keys['at-1']}"}
    async with (
        aiohttp.ClientSession(skip_auto_headers=["Content-Encoding"]) as http,
        http.post(f"{bench.url()}/{path}", data=b"no such thing", headers=headers) as response,
    ):
        assert response.status == 400, await response.text()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        *((path, {"model": 5}, "model") for path in BASES),
        *((path, {"chat_template_kwargs": DEEP}, "chat_template_kwargs") for path in BASES if path != "completions"),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": [CALL, "x"]}]}, "messages[0].tool_calls"),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": CALL}]}, "messages[0].tool_calls"),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": [CALL | {"id": []}]}]}, "messages[0].tool_calls"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": {}}]}]}, "messages"),
        ("chat/completions", {"stop_token_ids": [2**40]}, "stop_token_ids"),
        ("completions", {"prompt": [1, 2**31]}, "prompt"),
        ("responses", {"include": 5}, "include"),
        ("responses", {"include": [[]]}, "include"),
        ("messages", {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": [], "name": "a"}]}]},
         "messages[0].content[0]"),
    ],
)  # fmt: skip
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
