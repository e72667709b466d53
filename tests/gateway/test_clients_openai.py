"""The openai client against the gateway: every protocol and way of calling that it has, tokens proven after each."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from slime_agl.local.engine.router import start_router

ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
CHAT_TOOLS: list[Any] = [{"type": "function", "function": {"strict": True, **ADD}}]
RESPONSE_TOOLS: list[Any] = [{"type": "function", "strict": True, **ADD}]
TWO_CALLS = [("add", {"a": 1, "b": 2}), ("add", {"b": 4, "a": 3})]


def total(arguments: str) -> str:
    return str(sum(json.loads(arguments).values()))


def blocking(bench: Any) -> openai.OpenAI:
    client = openai.OpenAI(base_url=bench.url(), api_key=bench.keys["at-1"], max_retries=0)
    bench.clients.append(bench.client())
    return client


async def chat(client: openai.AsyncOpenAI, turns: int, **more: Any) -> list[Any]:
    """Run a conversation with tools, echoing what the client's objects dump, nulls and all."""
    messages: list[Any] = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Add things."}]
    for _ in range(turns):
        answer = await client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS, **more)
        message = answer.choices[0].message
        messages.append(message.model_dump())
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": total(call.function.arguments)}
            for call in message.tool_calls or ()
        ]
    return messages


async def test_chat_with_tools_is_one_segment(bench, script, fake_sglang):
    script(TWO_CALLS, [("add", {"a": 3, "b": 7})], "<think>\nEasy.\n</think>\n\nTen.")
    messages = await chat(await bench.open(), 3)
    assert messages[-1]["content"] == "Ten." and messages[-1]["reasoning_content"] == "Easy."
    assert (await bench.prove(fake_sglang)).one_segment(3)


async def test_a_blocking_chat_is_one_segment(bench, script, fake_sglang):
    script(TWO_CALLS, "Done.")
    await bench.open()

    def talk() -> None:
        messages: list[Any] = [{"role": "user", "content": "Add things."}]
        with blocking(bench) as client:
            first = client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS).choices[0].message
            messages.append(first)
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in first.tool_calls]
            client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)

    await asyncio.to_thread(talk)
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_the_clients_own_stream_helper_gives_messages_that_are_recognised(bench, script, fake_sglang):
    script(TWO_CALLS, "Done.")
    client = await bench.open()
    messages: list[Any] = [{"role": "user", "content": "Add things."}]
    for _ in range(2):
        async with client.chat.completions.stream(model="m", messages=messages, tools=CHAT_TOOLS) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        messages.append(message.model_dump(exclude={"parsed"}))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in message.tool_calls or ()]
    assert message.content == "Done."
    assert (await bench.prove(fake_sglang)).one_segment(2)


class Sum(BaseModel):
    value: int


async def test_parse_helpers_get_objects_and_the_engine_gets_the_schema(bench, script, fake_sglang):
    script('{"value": 7}', '{"value": 8}')
    client = await bench.open()
    ask: list[Any] = [{"role": "user", "content": "3 + 4?"}]
    parsed = await client.chat.completions.parse(model="m", messages=ask, response_format=Sum)
    assert parsed.choices[0].message.parsed == Sum(value=7)
    response = await client.responses.parse(model="m", input="4 + 4?", text_format=Sum)
    assert response.output_parsed == Sum(value=8)
    for request in fake_sglang.requests:
        assert json.loads(request.sampling_params["json_schema"])["properties"]["value"]["type"] == "integer"


async def test_alternatives_of_a_token_are_the_engines(bench, fake_sglang):
    ids = fake_sglang.tokenizer.encode("hi")
    fake_sglang.say(
        ids=ids, finish="length", meta={"output_top_logprobs": [[[-0.5, i, None], [-2.0, 65, None]] for i in ids]}
    )
    answer = await (await bench.open()).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=2
    )
    assert fake_sglang.requests[0].json["top_logprobs_num"] == 2
    for entry, token in zip(answer.choices[0].logprobs.content, ids, strict=True):
        told = [(top.token, top.logprob) for top in entry.top_logprobs]
        assert told == [(fake_sglang.tokenizer.decode([token]), -0.5), (fake_sglang.tokenizer.decode([65]), -2.0)]


async def test_one_call_at_a_time_shows_the_first_and_keeps_the_tokens_of_all(bench, script, fake_sglang):
    script(TWO_CALLS, "Three.")
    messages = await chat(await bench.open(), 2, parallel_tool_calls=False)
    assert len(messages[2]["tool_calls"]) == 1
    assert (await bench.prove(fake_sglang)).one_segment(2)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
async def test_a_call_that_must_be_made_is_begun_for_the_model(bench, script, fake_sglang, choice):
    begun = '<tool_call>\n{"name": "' + ("" if choice == "required" else "add")
    rest = '{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'.removeprefix(
        begun.removeprefix("<tool_call>\n")
    )
    script(rest, rest)
    messages = await chat(await bench.open(), 2, tool_choice=choice)
    assert [m["tool_calls"][0]["function"]["arguments"] for m in messages[2::2]] == ['{"a": 1, "b": 2}'] * 2
    assert all(request.text.endswith("<|im_start|>assistant\n" + begun) for request in fake_sglang.requests)
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_ids_are_given_to_an_agent_that_asks(bench, script, fake_sglang):
    script("hello", "again")
    client = await bench.open()
    first = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], extra_body={"return_token_ids": True}
    )
    held = first.model_extra["prompt_token_ids"] + first.choices[0].model_extra["token_ids"]
    assert tuple(held) == fake_sglang.requests[0].input_ids + fake_sglang.answers[0].ids
    await client.completions.create(model="m", prompt=[*held, 5, 6], max_tokens=50)
    assert fake_sglang.requests[1].input_ids == (*held, 5, 6)
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_a_stop_string_that_an_agent_writes_back_is_recognised(bench, fake_sglang):
    fake_sglang.say("Look.\nSTOP").say("Seen.")
    client = await bench.open()
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    answer = await client.chat.completions.create(model="m", messages=messages, stop="STOP")
    assert answer.choices[0].message.content == "Look.\n"
    messages += [{"role": "assistant", "content": "Look.\nSTOP"}, {"role": "user", "content": "Sunny."}]
    await client.chat.completions.create(model="m", messages=messages)
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_all_protocols_are_exact_behind_the_real_router(make_bench, script, fake_sglang, tmp_path):
    pytest.importorskip("sglang_router", reason="the router's wheel is not installed")
    with start_router([fake_sglang.url], log=tmp_path / "router.log") as router:
        bench = make_bench(url=router.url)
        client = await bench.open()
        script(TWO_CALLS, "Seven.")
        await chat(client, 2, logprobs=True, top_logprobs=2)
        assert fake_sglang.requests[0].json["top_logprobs_num"] == 2
        script(TWO_CALLS, "Done.")
        told: list[Any] = [{"role": "user", "content": "Add."}]
        response = await client.responses.create(model="m", input=told, tools=RESPONSE_TOOLS)
        told = outputs(response)
        await client.responses.create(model="m", input=told, tools=RESPONSE_TOOLS, previous_response_id=response.id)
        script("one", "two")
        first = await client.completions.create(model="m", prompt="x", max_tokens=50)
        await client.completions.create(model="m", prompt=f"x{first.choices[0].text}<|im_end|>y", max_tokens=50)
        script("hi", "again")
        for messages in (["a"], ["a", "hi", "b"]):
            roles = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(messages)]
            await client.post("/messages", body={"max_tokens": 50, "messages": roles}, cast_to=object)
        proof = await bench.prove(fake_sglang)
    assert (proof.segments, proof.turns, proof.trained) == (4, 8, proof.sampled)
    assert proof.forks == ["new_conversation"] * 3


# Legacy completions


async def test_a_text_that_goes_on_from_an_answer_is_one_segment(bench, script, fake_sglang):
    script("Hello.", "Fine.", "Bye.")
    client = await bench.open()
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for _ in range(3):
        answer = await client.completions.create(model="m", prompt=prompt, max_tokens=50)
        prompt += answer.choices[0].text + "<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    assert (await bench.prove(fake_sglang)).one_segment(3)


async def test_a_text_without_the_turns_end_is_a_root_made_of_the_same_ids(bench, script, fake_sglang):
    script("Hello.", "Fine.")
    client = await bench.open()
    answer = await client.completions.create(model="m", prompt="Q: hi\nA:", max_tokens=50)
    await client.completions.create(
        model="m", prompt="Q: hi\nA:" + answer.choices[0].text + "\nQ: and?\nA:", max_tokens=50
    )
    first, second = fake_sglang.requests
    kept = first.input_ids + fake_sglang.answers[0].ids[:-1]
    assert second.input_ids[: len(kept)] == kept
    proof = await bench.prove(fake_sglang)
    assert (proof.segments, proof.forks, proof.trained) == (2, ["ending_left_out"], proof.sampled)


async def test_a_stop_string_that_the_agent_writes_back_is_one_segment(bench, fake_sglang):
    tokenizer = fake_sglang.tokenizer
    fake_sglang.say(ids=[*tokenizer.encode("Look.\n"), *map(tokenizer.convert_tokens_to_ids, "STOP"), 66]).say("Seen.")
    client = await bench.open()
    prompt = "Think aloud."
    answer = await client.completions.create(model="m", prompt=prompt, max_tokens=50, stop=["STOP"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Look.\n", "stop")
    await client.completions.create(model="m", prompt=prompt + "Look.\nSTOP: sunny", max_tokens=50)
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_several_prompts_are_several_roots_and_echo_shows_them(bench, script, fake_sglang):
    script("one", "two", "three", "four")
    client = await bench.open()
    answer = await client.completions.create(
        model="m", prompt=["a", "b"], n=2, echo=True, max_tokens=9, extra_body={"top_k": 5}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text[0] for choice in answer.choices] == ["a", "a", "b", "b"]
    assert answer.usage.prompt_tokens == 2
    proof = await bench.prove(fake_sglang)
    assert (proof.segments, proof.trained) == (4, proof.sampled)


async def test_completions_stream_with_logprobs(bench, script, fake_sglang):
    script("hi you")
    client = await bench.open()
    stream = await client.completions.create(
        model="m", prompt="x", max_tokens=50, stream=True, logprobs=0, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    choice = chunks[0].choices[0]
    assert choice.text == "hi you" and choice.logprobs.token_logprobs == list(fake_sglang.answers[0].logprobs)
    assert choice.logprobs.tokens[:3] == ["h", "i", " "] and choice.logprobs.text_offset[:3] == [0, 1, 2]
    assert chunks[-1].usage.completion_tokens == len(fake_sglang.answers[0].ids)


# Responses


def outputs(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": total(item.arguments)}
        for item in response.output
        if item.type == "function_call"
    ]


@pytest.mark.parametrize("stored", [True, False])
async def test_responses_with_tools_are_one_segment(bench, script, fake_sglang, stored):
    script(TWO_CALLS, "<think>\nHm.\n</think>\n\n" + "Ten.", "Sure.")
    client = await bench.open()
    told: list[Any] = [{"role": "user", "content": "Add things."}]
    given: dict[str, Any] = {"model": "m", "instructions": "Use tools.", "tools": RESPONSE_TOOLS}
    previous = None
    for more in (outputs, lambda _: [{"role": "user", "content": "Sure?"}], None):
        if stored:
            response = await client.responses.create(input=told, previous_response_id=previous, **given)
            previous, told = response.id, []
        else:
            sealed: Any = ["reasoning.encrypted_content"]
            response = await client.responses.create(input=told, store=False, include=sealed, **given)
            told += [item.model_dump() for item in response.output]
        told += more(response) if more else []
    assert (response.output_text, response.status) == ("Sure.", "completed")
    assert (await bench.prove(fake_sglang)).one_segment(3)


async def test_calls_told_between_their_outputs_are_the_calls_of_one_turn(bench, script, fake_sglang):
    script(TWO_CALLS, "Done.")
    client = await bench.open()
    told: list[Any] = [{"role": "user", "content": "Add things."}]
    response = await client.responses.create(model="m", input=told, tools=RESPONSE_TOOLS)
    for item, output in zip(response.output, outputs(response), strict=True):
        told += [item.model_dump(exclude={"id", "status"}), output]
    await client.responses.create(model="m", input=told, tools=RESPONSE_TOOLS)
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_a_streamed_response_says_the_same_in_the_official_order(bench, script, fake_sglang):
    script("<think>\nHm.\n</think>\n\nAdding." + '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    client = await bench.open()
    async with client.responses.stream(model="m", input="hi", tools=RESPONSE_TOOLS) as stream:
        events = [event async for event in stream]
        response = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    item = ["output_item.added", ..., "output_item.done"]
    order = ["created", "in_progress"]
    for inner in ([p.format("reasoning_text") for p in part], [p.format("output_text") for p in part], arguments):
        order += [item[0], *inner, item[2]]
    assert [event.type for event in events] == [f"response.{name}" for name in [*order, "completed"]]
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert (await client.responses.retrieve(response.id)).output_text == response.output_text == "Adding."


async def test_stored_responses_belong_to_their_attempt_and_can_be_forgotten(bench, script, fake_sglang):
    script("hi")
    mine, other = await bench.open("at-1"), await bench.open("at-2")
    response = await mine.responses.create(model="m", input="hi")
    with pytest.raises(openai.NotFoundError):
        await other.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_not_found"):
        await other.responses.create(model="m", input="hi", previous_response_id=response.id)
    await mine.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await mine.responses.retrieve(response.id)


async def test_a_response_cut_by_length_is_incomplete(bench, fake_sglang):
    fake_sglang.say("never end", finish="length")
    response = await (await bench.open()).responses.create(model="m", input="hi", max_output_tokens=4)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_items_can_be_named_instead_of_sent(bench, script, fake_sglang):
    script("hi", "again")
    client = await bench.open()
    first = await client.responses.create(model="m", input="hello")
    told: list[Any] = [{"role": "user", "content": "hello"}, {"type": "item_reference", "id": first.output[0].id}]
    await client.responses.create(model="m", input=[*told, {"role": "user", "content": "more"}])
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_models_are_listed_and_found(bench):
    client = await bench.open()
    assert [model.id async for model in client.models.list()] == ["policy"]
    assert (await client.models.retrieve("org/name")).id == "org/name"


@pytest.mark.parametrize(
    "call, body, param",
    [
        ("responses", {"input": "x", "tools": [{"type": "local_shell"}]}, "tools[0]"),
        (
            "responses",
            {"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "tool_choice",
        ),
        ("responses", {"input": "x", "tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ("responses", {"input": "x", "tools": [{"type": "namespace", "tools": []}]}, "tools[0]"),
        (
            "responses",
            {"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]},
            "tools[0].tools[0]",
        ),
        (
            "responses",
            {"input": "x", "tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]},
            "tools[0].format",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "custom", "custom": {}}]},
            "tools[0].custom",
        ),
        ("responses", {"input": "x", "background": True}, "background"),
        ("responses", {"input": "x", "truncation": "auto"}, "truncation"),
        ("responses", {"input": "x", "conversation": "conv_1"}, "conversation"),
        ("responses", {"input": [{"type": "web_search_call", "id": "w"}]}, "input[0]"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0]"),
        ("responses", {"input": "x", "text": {"verbosity": "low"}}, "text.verbosity"),
        ("responses", {"input": "x", "previous_response_id": "resp_0"}, "previous_response_id"),
        ("completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("completions", {"prompt": "x", "best_of": 3}, "best_of"),
        ("completions", {"prompt": [1, "x"]}, "prompt"),
        ("completions", {"prompt": "x", "echo": True, "logprobs": 1}, "echo"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_token": 3}, "max_token"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "web_search_options": {}},
            "web_search_options",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "modalities": ["text", "audio"]},
            "modalities",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"},
            "tool_choice",
        ),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 1}, "top_logprobs"),
    ],
)
async def test_what_would_change_its_meaning_is_refused_by_name(bench, fake_sglang, call, body, param):
    client = await bench.open()
    with pytest.raises(openai.BadRequestError) as refused:
        await client.post(f"/{call}", body={"model": "m", **body}, cast_to=object)
    assert refused.value.param == param and fake_sglang.requests == []


async def test_what_changes_nothing_is_accepted(bench, script, fake_sglang):
    script("ok")
    client = await bench.open()
    await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "x"}],
        store=True,
        metadata={"a": "b"},
        user="u",
        seed=3,
        service_tier="auto",
        prediction={"type": "content", "content": "x"},
        modalities=["text"],
        temperature=0.1,
        reasoning_effort="low",
        prompt_cache_key="k",
        frequency_penalty=0.5,
        extra_body={"top_k": 3, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}, "max_tokens": None},
    )
    assert fake_sglang.requests[0].sampling_params["temperature"] == 1.0


async def test_under_the_agents_sampling_its_parameters_reach_the_engine(make_bench, script, fake_sglang):
    script("ok")
    client = await make_bench(policy="agent").open()
    extra = {"top_k": 3, "min_p": 0.1, "stop_token_ids": [77]}
    ask: list[Any] = [{"role": "user", "content": "x"}]
    await client.chat.completions.create(model="m", messages=ask, temperature=0.1, seed=3, extra_body=extra)
    params = fake_sglang.requests[0].sampling_params
    assert (params["temperature"], params["top_k"], params["min_p"], params["sampling_seed"]) == (0.1, 3, 0.1, 3)
    assert params["stop_token_ids"] == [77]


async def test_a_retried_response_is_the_response_again(bench, script, fake_sglang):
    script("once")
    client = await bench.open()
    first = await client.responses.create(model="m", input="hi")
    again = await client.responses.create(model="m", input="hi", extra_headers={"x-stainless-retry-count": "1"})
    assert (first.id, first.output_text) == (again.id, again.output_text) and len(fake_sglang.requests) == 1
