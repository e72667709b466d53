"""Malformed output reaches the agent as text, never as an unfinished call; its tokens train."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from slime_agl.chat.parse.reply import ReplyParser

ASK: list[Any] = [{"role": "user", "content": "1 + 2?"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
]
GOOD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CUT = '<tool_call>\n{"name": "add", "arguments": {"a": 1'


async def answered(bench: Any, **more: Any) -> Any:
    client = await bench.open()
    return (await client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, **more)).choices[0]


@pytest.mark.parametrize(
    ("said", "finish"),
    [
        pytest.param(CUT, "length", id="cut by the limit"),
        pytest.param(GOOD + CUT, "length", id="the second of two calls is cut"),
        pytest.param(CUT, "stop", id="ended within a call"),
        pytest.param(GOOD.replace("1}", "1,}"), "stop", id="not JSON"),
        pytest.param(GOOD.replace('{"a": 1}', "[1]"), "stop", id="arguments are no object"),
        pytest.param("<tool_call>\nadd(1)\n</tool_call>", "stop", id="markers without a call"),
        pytest.param("so </tool_call>", "stop", id="an end without a start"),
    ],
)
async def test_no_call_is_made_of_broken_syntax(bench, fake_sglang, said, finish):
    fake_sglang.say(said, finish=finish)
    choice = await answered(bench)
    assert choice.message.tool_calls is None and choice.message.content == said
    assert choice.finish_reason == finish
    left = await bench.seal()
    assert left.counters["ill_formed_replies"] == 1
    assert list(left.ledger.turns[0].output_ids()) == list(fake_sglang.answers[0].ids)
    assert left.ledger.turns[0].untrained == ""


async def test_a_turn_that_an_abort_cuts_for_good_makes_no_call(bench, fake_sglang):
    fake_sglang.say(GOOD).hold().abort_partial(20)
    client = await bench.open()
    asked = client.chat.completions.create(model="m", messages=ASK, tools=TOOLS)
    going = asyncio.ensure_future(asked)
    await fake_sglang.requests_arrived(1)
    left = await bench.seal()
    with pytest.raises(openai.ConflictError):
        await going
    (turn,) = left.ledger.turns
    assert (turn.finish, turn.output_length, turn.untrained) == ("abort", 20, "sealed")


async def test_a_call_of_an_unknown_tool_is_the_agents_to_handle(bench, fake_sglang):
    fake_sglang.call_tools(("add", {"a": 1}), ("fly", {}))
    calls = (await answered(bench)).message.tool_calls
    assert [call.function.name for call in calls] == ["add", "fly"]


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
async def test_a_stop_token_does_not_leak_into_the_answer_nor_twice_into_the_next_prompt(bench, fake_sglang, end):
    stop = fake_sglang.tokenizer.convert_tokens_to_ids(end)
    words = fake_sglang.tokenizer.encode("three", add_special_tokens=False)
    fake_sglang.say(ids=[*words, stop], matched=stop).say("yes")
    client = await bench.open()
    first = await client.chat.completions.create(model="m", messages=ASK)
    assert first.choices[0].message.content == "three"
    told = [*ASK, {"role": "assistant", "content": "three"}, {"role": "user", "content": "sure?"}]
    await client.chat.completions.create(model="m", messages=told)
    assert fake_sglang.requests[1].text.count("three" + end + "\n<|im_start|>user") == 1


async def test_a_parser_that_fails_costs_no_turn(bench, fake_sglang, monkeypatch, caplog):
    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("detector state")

    monkeypatch.setattr(ReplyParser, "_read", fail)
    fake_sglang.call_tool("add", {"a": 1})
    choice = await answered(bench)
    assert choice.message.tool_calls is None and choice.message.content == GOOD
    assert "parser failed on a turn" in caplog.text
    assert (await bench.seal()).ledger.turns[0].untrained == ""
