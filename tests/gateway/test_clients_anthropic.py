"""The anthropic client against the gateway, tokens proven after each conversation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

anthropic = pytest.importorskip("anthropic")

ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
TWO_CALLS = [("add", {"a": 1, "b": 2}), ("add", {"b": 4, "a": 3})]
ASK: dict[str, Any] = {"model": "m", "max_tokens": 400, "messages": [{"role": "user", "content": "hi"}]}


@pytest_asyncio.fixture
async def connect(bench: Any) -> AsyncIterator[Any]:
    """`connect(base)` opens the attempt and a client; base: what follows the attempt's address."""
    clients: list[Any] = []

    async def make(base: str = "") -> Any:
        await bench.open()
        url = bench.url().removesuffix("/v1") + base
        clients.append(anthropic.AsyncAnthropic(base_url=url, api_key=bench.keys["at-1"], max_retries=0))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


def results(content: list[Any]) -> list[Any]:
    """What the agent answers to the calls in an answer: the second one failed."""
    calls = [block for block in content if block.type == "tool_use"]
    return [
        {"type": "tool_result", "tool_use_id": call.id, "content": str(sum(call.input.values())), "is_error": at == 1}
        for at, call in enumerate(calls)
    ]


@pytest.mark.parametrize("base", ["", "/v1"])
async def test_tools_with_thinking_are_one_segment(connect, bench, script, fake_sglang, base):
    script(TWO_CALLS, "<think>\nHm.\n</think>\n\nTen.", "Sure.")
    client = await connect(base)
    told: list[Any] = [{"role": "user", "content": "Add things."}]
    system: Any = [{"type": "text", "text": "Use tools.", "cache_control": {"type": "ephemeral"}}]
    for turn in range(3):
        message = await client.messages.create(
            model="m",
            max_tokens=400,
            system=system,
            messages=told,
            tools=[ADD],
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
        told.append({"role": "assistant", "content": message.content})
        told.append({"role": "user", "content": results(message.content) or [{"type": "text", "text": "Sure?"}]})
        if turn == 1:
            assert [block.type for block in message.content] == ["thinking", "text"]
            assert (message.content[0].thinking, bool(message.content[0].signature)) == ("Hm.", True)
    assert "<tool_response>\nError: 7\n</tool_response>" in fake_sglang.requests[1].text
    assert (await bench.prove(fake_sglang)).one_segment(3)


async def test_without_thinking_asked_for_the_answer_begins_with_its_text(connect, bench, script, fake_sglang):
    script("<think>\nHm.\n</think>\n\nYes.", "Sure.")
    client = await connect()
    message = await client.messages.create(**ASK)
    assert (message.content[0].text, message.stop_reason) == ("Yes.", "end_turn")
    told = [*ASK["messages"], {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Sure?"}]
    await client.messages.create(**{**ASK, "messages": told})
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_the_clients_stream_helper_builds_the_same_message(connect, bench, script, fake_sglang):
    script(
        "<think>\nHm.\n</think>\n\n" + 'Go.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 5}}\n</tool_call>',
        "Six.",
    )
    client = await connect()
    told: list[Any] = [{"role": "user", "content": "1 + 5?"}]
    given = {"model": "m", "max_tokens": 400, "tools": [ADD], "thinking": {"type": "adaptive"}}
    async with client.messages.stream(messages=told, **given) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[-1].input == {"a": 1, "b": 5} and message.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(fake_sglang.answers[0].ids)
    told += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results(message.content)}]
    assert (await client.messages.create(messages=told, **given)).content[0].text == "Six."
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_raw_events_come_in_the_official_order(connect, script):
    script([("add", {"a": 1})])
    client = await connect()
    stream = await client.messages.create(**ASK, tools=[ADD], stream=True)
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [event.type async for event in stream] == ["message_start", *block, "message_delta", "message_stop"]


async def test_a_blocking_client_is_served_too(connect, bench, script, fake_sglang):
    script("hello", "again")
    client = await connect()

    def talk() -> None:
        told = list(ASK["messages"])
        with anthropic.Anthropic(base_url=str(client.base_url), api_key=client.api_key, max_retries=0) as blocking:
            message = blocking.messages.create(**{**ASK, "messages": told})
            told += [{"role": "assistant", "content": [block.model_dump() for block in message.content]}]
            told += [{"role": "user", "content": [{"type": "text", "text": "more"}]}]
            blocking.messages.create(**{**ASK, "messages": told})

    await asyncio.to_thread(talk)
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_counted_tokens_are_those_the_engine_is_shown(connect, bench, script, fake_sglang):
    script(TWO_CALLS, "Done.")
    client = await connect()
    told: list[Any] = [{"role": "user", "content": "Add things."}]
    for _ in range(2):
        counted = await client.messages.count_tokens(model="m", messages=told, tools=[ADD])
        message = await client.messages.create(model="m", max_tokens=400, messages=told, tools=[ADD])
        assert counted.input_tokens == len(fake_sglang.requests[-1].input_ids)
        usage = message.usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
        told += [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": results(message.content)},
        ]
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_a_stop_sequence_ends_the_turn_and_says_so(connect, fake_sglang):
    fake_sglang.say("one two three")
    message = await (await connect()).messages.create(**ASK, stop_sequences=["two"])
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == ("stop_sequence", "two", "one ")


async def test_a_limit_ends_the_turn_and_says_so(connect, script):
    script("one two three")
    message = await (await connect()).messages.create(**{**ASK, "max_tokens": 2})
    assert message.stop_reason == "max_tokens"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
async def test_a_call_that_must_be_made_is_begun_for_the_model(connect, bench, script, fake_sglang, choice):
    begun = '{"name": "' + ("" if choice["type"] == "any" else "add")
    script('{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'.removeprefix(begun))
    message = await (await connect()).messages.create(**ASK, tools=[ADD], tool_choice=choice)
    assert [(block.type, block.input) for block in message.content] == [("tool_use", {"a": 1, "b": 2})]
    assert fake_sglang.requests[0].text.endswith("<tool_call>\n" + begun)
    assert (await bench.prove(fake_sglang)).one_segment(1)


async def test_one_call_at_a_time_keeps_the_tokens_of_all(connect, bench, script, fake_sglang):
    script(TWO_CALLS, "Three.")
    client = await connect()
    given: dict[str, Any] = {"tools": [ADD], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    message = await client.messages.create(**ASK, **given)
    assert len(message.content) == 1
    told = [
        *ASK["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results(message.content)},
    ]
    await client.messages.create(**{**ASK, "messages": told}, **given)
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_a_line_for_the_service_that_changes_with_each_call_does_not_fork(connect, bench, script, fake_sglang):
    script("one", "two")
    client = await connect()
    told = list(ASK["messages"])
    for number in range(2):
        line = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={number};"}
        system: Any = [line, {"type": "text", "text": "Be brief."}]
        message = await client.messages.create(**{**ASK, "messages": told}, system=system)
        told += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "more"}]
    assert "cch" not in fake_sglang.requests[0].text
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_the_models_are_listed_in_its_own_shape(connect):
    client = await connect()
    assert [model.id async for model in client.models.list()] == ["policy"]
    assert (await client.models.retrieve("m")).type == "model"


@pytest.mark.parametrize(
    "field, value",
    [
        ("tools", [{"type": "bash_20250124", "name": "bash"}]),
        ("mcp_servers", [{"type": "url", "url": "https://x", "name": "x"}]),
        ("max_tokens", None),
        ("system", 3),
        ("thinking", {"type": "maybe"}),
        ("context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]}),
        ("temprature", 1),
        ("messages", [{"role": "tool", "content": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "document", "source": {}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]),
        ("messages", [{"role": "assistant", "content": [{"type": "server_tool_use", "id": "x"}]}]),
    ],
)
async def test_what_cannot_be_honoured_is_refused_in_its_own_shape(connect, fake_sglang, field, value):
    client = await connect()
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.post("/v1/messages", body={**ASK, field: value}, cast_to=object)
    error = refused.value.body
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert field in error["error"]["message"] and fake_sglang.requests == []


async def test_errors_have_its_shape_and_are_not_repeated(connect, bench, fake_sglang):
    client = await connect()
    with pytest.raises(anthropic.AuthenticationError) as refused:
        await client.with_options(api_key="sk-agl-guessed").messages.create(**ASK)
    assert refused.value.body["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await client.messages.create(**{**ASK, "messages": [{"role": "user", "content": "x" * 40_000}]})
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        await client.post("/v1/nothing", cast_to=object)
    await bench.seal()
    with pytest.raises(anthropic.ConflictError) as late:
        await client.messages.create(**ASK)
    assert late.value.response.headers["x-should-retry"] == "false"


async def test_a_stream_that_fails_after_it_began_ends_with_an_error_event(bench, connect, fake_sglang, monkeypatch):
    monkeypatch.setattr("slime_agl.gateway.http.app.KEEP_ALIVE_SECONDS", 0.001)
    fake_sglang.say("never").hold()
    client = await connect()
    async with aiohttp.ClientSession(headers={"x-api-key": client.api_key}) as http:
        async with http.post(f"{client.base_url}v1/messages", json={**ASK, "stream": True}) as response:
            assert (await response.content.readline()).startswith(b":")
            sealing = asyncio.ensure_future(bench.seal())
            lines = (await response.read()).decode().splitlines()
            await sealing
    data = json.loads(next(line for line in lines if line.startswith("data:"))[5:])
    assert "event: error" in lines and data["error"]["type"] == "invalid_request_error"
