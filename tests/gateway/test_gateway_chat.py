"""Chat completions as the openai client sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import openai
import pytest

ASK: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
]


async def say(client: openai.AsyncOpenAI, messages: Any = ASK, **more: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=messages, **more)


async def test_an_answer_has_usage_and_a_finish_reason(bench, fake_sglang):
    fake_sglang.say("hello").say("cut of", finish="length")
    client = await bench.open()
    answer = await say(client)
    (request,) = fake_sglang.requests
    assert answer.choices[0].finish_reason == "stop" and answer.model == "m"
    assert answer.usage.prompt_tokens == len(request.input_ids)
    assert answer.usage.completion_tokens == len(fake_sglang.answers[0].ids)
    assert (await say(client)).choices[0].finish_reason == "length"


async def test_parallel_tool_calls_are_all_kept(bench, fake_sglang):
    fake_sglang.call_tools(("add", {"a": 1}), ("add", {"a": 2}))
    message = (await say(await bench.open(), tools=TOOLS)).choices[0].message
    assert [call.function.arguments for call in message.tool_calls] == ['{"a": 1}', '{"a": 2}']
    assert len({call.id for call in message.tool_calls}) == 2 and message.content is None


async def test_a_call_cut_by_length_is_not_executable(bench, fake_sglang):
    fake_sglang.say('<tool_call>\n{"name": "add", "arguments": {"a": 1}', finish="length")
    choice = (await say(await bench.open(), tools=TOOLS)).choices[0]
    assert choice.message.tool_calls is None and choice.finish_reason == "length"
    assert "<tool_call>" in choice.message.content


async def test_a_stream_says_the_same_as_one_body(bench, fake_sglang):
    fake_sglang.call_tools(("add", {"a": 1}), ("add", {"a": 2}), text="Adding.")
    stream = await say(await bench.open(), tools=TOOLS, stream=True, stream_options={"include_usage": True})
    text, calls, finish, usage = "", {}, None, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or ():
                calls[call.index] = call.function.arguments
    assert (text.strip(), finish) == ("Adding.", "tool_calls")
    assert calls == {0: '{"a": 1}', 1: '{"a": 2}'}
    assert usage.completion_tokens == len(fake_sglang.answers[0].ids)


async def test_a_refused_stream_is_an_ordinary_error(bench):
    client = await bench.open()
    with pytest.raises(openai.BadRequestError):
        await say(client, [], stream=True)


async def test_n_answers_are_sibling_turns_of_one_prompt(bench, fake_sglang):
    fake_sglang.say("one").say("two").say("after two")
    client = await bench.open()
    answer = await say(client, n=2)
    said = [choice.message.content for choice in answer.choices]
    assert sorted(said) == ["one", "two"]  # Both are asked for at once, in either order.
    await say(client, [*ASK, {"role": "assistant", "content": said[1]}, {"role": "user", "content": "go on"}])
    first, second, after = (await bench.seal()).ledger.turns
    assert (first.parent, second.parent, after.parent) == (None, None, second.index)
    assert first.new_ids == second.new_ids


async def test_logprobs_are_the_engines(bench, fake_sglang):
    fake_sglang.say("hi")
    entries = (await say(await bench.open(), logprobs=True)).choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == list(fake_sglang.answers[0].logprobs)


async def test_the_bytes_of_tokens_that_hold_part_of_a_character_make_it_up(bench, fake_sglang):
    fake_sglang.say("so 😀")
    client = await bench.open()
    answer = await client.chat.completions.create(model="m", messages=ASK, logprobs=True)
    entries = answer.choices[0].logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == "so 😀<|im_end|>"
    assert any(entry.token == "\ufffd" for entry in entries)


@pytest.mark.parametrize(
    "field, value",
    [
        ("logit_bias", {"5": 1}),
        ("top_logprobs", 3),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("n", 0),
        ("max_tokens", 0),
        ("stop", [1]),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "grammar"}),
        ("messages", "hi"),
        ("messages", [{"role": "wizard", "content": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ],
)
async def test_what_cannot_be_honoured_is_a_400_that_names_the_field(bench, fake_sglang, field: str, value: Any):
    await bench.open()
    body = {"model": "m", "messages": ASK, field: value}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {bench.keys['at-1']}"}) as http:
        async with http.post(f"{bench.url()}/chat/completions", json=body) as response:
            error = (await response.json())["error"]
    assert response.status == 400 and error["param"].startswith(field)
    assert fake_sglang.requests == []


async def test_a_body_that_is_not_json_is_a_400(bench):
    await bench.open()
    async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as http:
        async with http.post(f"{bench.url()}/chat/completions", data=b"{") as response:
            assert response.status == 400 and "not JSON" in (await response.json())["error"]["message"]


async def test_a_tool_call_echoed_with_other_spaces_and_key_order_is_recognised(bench, fake_sglang):
    fake_sglang.say('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>').say("3")
    client = await bench.open()
    message = (await say(client, tools=TOOLS)).choices[0].message
    echo = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": message.tool_calls[0].id,
                "type": "function",
                "function": {"name": "add", "arguments": '{"b":2,"a":1}'},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
    await say(client, [*ASK, echo, result], tools=TOOLS)
    first, second = (await bench.seal()).ledger.turns
    assert (second.parent, second.fork) == (first.index, "")


async def test_dropped_reasoning_does_not_fork(bench, fake_sglang):
    fake_sglang.say("<think>\nhm\n</think>\n\nYes.").say("Sure.")
    client = await bench.open()
    message = (await say(client)).choices[0].message
    assert message.content == "Yes." and message.reasoning_content == "hm"
    await say(client, [*ASK, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "sure?"}])
    first, second = (await bench.seal()).ledger.turns
    assert (second.parent, second.fork) == (first.index, "")


async def test_a_history_goes_on_though_its_client_drops_the_text_that_it_once_wrote_beside_a_call(bench, fake_sglang):
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    fake_sglang.say(call).say(call).say("2")
    client = await bench.open()
    edited = (await say(client, tools=TOOLS)).choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": edited["tool_calls"][0]["id"], "content": "1"}
    edited["content"] = "Never said that."
    again = (await say(client, [*ASK, edited, result], tools=TOOLS)).choices[0].message.model_dump(exclude_none=True)
    last = {"role": "tool", "tool_call_id": again["tool_calls"][0]["id"], "content": "2"}
    told = [*ASK, {**edited, "content": None}, result, {**again, "content": None}, last]
    await say(client, told, tools=TOOLS)
    turns = (await bench.seal()).ledger.turns
    assert [(turn.parent, turn.fork) for turn in turns] == [(None, ""), (None, "history_edited"), (1, "")]


async def test_changed_tools_are_a_new_segment(bench, fake_sglang):
    fake_sglang.say("one").say("two")
    client = await bench.open()
    await say(client, tools=TOOLS)
    more = [*ASK, {"role": "assistant", "content": "one"}, {"role": "user", "content": "and?"}]
    await say(client, more)
    turns = (await bench.seal()).ledger.turns
    assert (turns[1].parent, turns[1].fork) == (None, "tools_changed")


async def test_concurrent_calls_of_one_attempt_are_branches(bench, fake_sglang):
    fake_sglang.answer_with(lambda request: "same")
    client = await bench.open()
    await say(client)
    told = [*ASK, {"role": "assistant", "content": "same"}]
    await asyncio.gather(*(say(client, [*told, {"role": "user", "content": str(i)}]) for i in range(5)))
    turns = (await bench.seal()).ledger.turns
    assert [turn.parent for turn in turns] == [None, 0, 0, 0, 0, 0]
    assert sorted(turn.fork for turn in turns[1:]) == ["", "branch", "branch", "branch", "branch"]


async def test_what_the_engine_had_seen_and_still_had_is_counted(bench, fake_sglang):
    client = await bench.open()
    for text, cached in (("one", 7), ("two", 5), ("three", 10_000)):
        fake_sglang.say(text, meta={"cached_tokens": cached})
    said: list[Any] = [{"role": "user", "content": "a"}]
    lengths = []
    for number in range(3):
        answer = await client.chat.completions.create(model="m", messages=said)
        said += [answer.choices[0].message.model_dump(), {"role": "user", "content": f"b{number}"}]
        lengths.append(answer.usage.total_tokens)
    counters = (await bench.prove(fake_sglang)).left.counters
    assert counters["held_tokens"] == lengths[0] + lengths[1]
    assert counters["reused_tokens"] == 5 + lengths[1], "no more than was there"
