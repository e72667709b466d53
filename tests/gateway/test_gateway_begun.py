"""Assistant prefill: the model continues the agent's text, and only what it sampled trains."""

from __future__ import annotations

from typing import Any

import aiohttp
import openai
import pytest

ASK: list[Any] = [{"role": "user", "content": "a haiku?"}]
CONTINUE = {"extra_body": {"continue_final_message": True}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
]


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def say(client: openai.AsyncOpenAI, messages: Any, **more: Any) -> Any:
    answer = await client.chat.completions.create(model="m", messages=messages, **more)
    return answer.choices[0].message


async def test_the_model_goes_on_within_a_message_and_the_agent_is_told_what_is_new(bench, fake_sglang):
    fake_sglang.say(" still pond").say("More.")
    client = await bench.open()
    assert (await say(client, [*ASK, assistant("An old,")], **CONTINUE)).content == " still pond"
    whole = [*ASK, assistant("An old, still pond"), {"role": "user", "content": "and?"}]
    assert (await say(client, whole)).content == "More."
    first, second = fake_sglang.requests
    assert first.text.endswith("<|im_start|>assistant\nAn old,")
    assert second.text.startswith(first.text + " still pond<|im_end|>\n<|im_start|>user\nand?")
    proof = await bench.prove(fake_sglang)
    assert proof.one_segment(2)


async def test_an_answer_that_was_cut_goes_on_with_the_sampled_ids(bench, fake_sglang):
    odd = [fake_sglang.tokenizer.convert_tokens_to_ids(letter) for letter in "the"]
    fake_sglang.say(ids=odd, finish="length").say(" end")
    client = await bench.open()
    assert (await say(client, ASK)).content == "the"
    assert (await say(client, [*ASK, assistant("the")], **CONTINUE)).content == " end"
    first, second = fake_sglang.requests
    assert list(second.input_ids) == [*first.input_ids, *odd], "nothing is closed, opened or encoded again"
    fake_sglang.say("ok")
    await say(client, [*ASK, assistant("the end"), {"role": "user", "content": "?"}])
    proof = await bench.prove(fake_sglang)
    assert proof.one_segment(3)


async def test_what_the_agent_adds_to_a_cut_answer_is_glue(bench, fake_sglang):
    fake_sglang.say("two plus", finish="length").say(" is four")
    client = await bench.open()
    await say(client, ASK)
    assert (await say(client, [*ASK, assistant("two plus two")], **CONTINUE)).content == " is four"
    one, two = (await bench.seal()).ledger.turns
    assert (two.parent, two.fork, fake_sglang.tokenizer.decode(list(two.new_ids))) == (one.index, "", " two")


async def test_an_answer_that_the_model_ended_is_begun_anew_beside_it(bench, fake_sglang):
    fake_sglang.say("done").say(" it")
    client = await bench.open()
    await say(client, ASK)
    assert (await say(client, [*ASK, assistant("done")], **CONTINUE)).content == " it"
    assert fake_sglang.requests[1].text.endswith("<|im_start|>assistant\ndone")
    proof = await bench.prove(fake_sglang)
    assert proof.trained == proof.sampled and proof.segments == 2


async def test_a_call_that_the_agent_began_is_made(bench, fake_sglang):
    fake_sglang.say(' {"a": 1}}\n</tool_call>')
    begun = '<tool_call>\n{"name": "add", "arguments":'
    message = await say(await bench.open(), [*ASK, assistant(begun)], tools=TOOLS, **CONTINUE)
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [("add", '{"a": 1}')]
    assert not message.content


async def test_a_begun_answer_extends_the_turn_before_it(bench, fake_sglang):
    fake_sglang.call_tool("add", {"a": 1}).say("3.")
    client = await bench.open()
    called = await say(client, ASK, tools=TOOLS)
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "3"}
    told = [*ASK, called.model_dump(exclude_none=True), result, assistant("The sum is")]
    await say(client, told, tools=TOOLS, **CONTINUE)
    proof = await bench.prove(fake_sglang)
    assert proof.one_segment(2)


async def test_without_the_flag_a_last_assistant_message_is_finished(bench, fake_sglang):
    fake_sglang.say("more")
    await say(await bench.open(), [*ASK, assistant("An old,")])
    assert fake_sglang.requests[0].text.endswith("An old,<|im_end|>\n<|im_start|>assistant\n")


async def test_messages_of_anthropic_go_on_with_a_last_assistant_message(bench, fake_sglang):
    fake_sglang.say(" still pond")
    await bench.open()
    body = {"model": "m", "max_tokens": 99, "messages": [*ASK, assistant("An old,")]}
    key = {"x-api-key": bench.keys["at-1"]}
    async with aiohttp.ClientSession(headers=key) as http, http.post(f"{bench.url()}/messages", json=body) as answer:
        assert (await answer.json())["content"] == [{"type": "text", "text": " still pond"}]
    assert fake_sglang.requests[0].text.endswith("<|im_start|>assistant\nAn old,")


@pytest.mark.parametrize(
    ("messages", "body", "param"),
    [
        (ASK, {"continue_final_message": True}, "messages"),
        ([*ASK, {"role": "assistant", "tool_calls": []}], {"continue_final_message": True}, "messages"),
        (
            [*ASK, assistant("x")],
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
        (ASK, {"add_generation_prompt": False}, "add_generation_prompt"),
        ([*ASK, assistant("x")], {"continue_final_message": "yes"}, "continue_final_message"),
        (
            [*ASK, assistant("x")],
            {"continue_final_message": True, "tools": TOOLS, "tool_choice": "required"},
            "tool_choice",
        ),
    ],
)
async def test_contradictions_are_refused_before_sampling(bench, fake_sglang, messages, body, param):
    client = await bench.open()
    with pytest.raises(openai.BadRequestError) as refused:
        await say(client, messages, extra_body=body)
    assert refused.value.param == param
    assert fake_sglang.requests == []
