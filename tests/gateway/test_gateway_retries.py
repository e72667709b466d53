"""Which request repeats which: by Idempotency-Key, else by the retry number."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import aiohttp
import openai
import pytest

from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.sessions.calls import FIRST_TRY, Call, CallTable

ASK: list[Any] = [{"role": "user", "content": "a number?"}]
KEY = "Idempotency-Key"
TRIED = "x-stainless-retry-count"


@pytest.fixture
def numbered(fake_sglang: Any) -> Any:
    """An engine that says another number at each request."""
    numbers = itertools.count()
    return fake_sglang.answer_with(lambda request: f"number {next(numbers)}")


async def say(client: openai.AsyncOpenAI, **headers: Any) -> Any:
    named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    return await client.chat.completions.create(model="m", messages=ASK, extra_headers=named)


async def test_each_key_is_a_call_of_its_own_although_the_bodies_are_equal(bench, numbered):
    client = await bench.open()
    answers = [await say(client, Idempotency_Key=f"draw-{number}") for number in range(4)]
    assert len({answer.id for answer in answers}) == len(numbered.requests) == 4
    assert len({answer.choices[0].message.content for answer in answers}) == 4


async def test_calls_with_different_keys_that_are_made_at_once_are_sampled_each(bench, numbered):
    client = await bench.open()
    answers = await asyncio.gather(*(say(client, Idempotency_Key=f"draw-{number}") for number in range(8)))
    assert len({answer.id for answer in answers}) == len(numbered.requests) == 8


async def test_the_same_key_joins_the_call_in_flight(bench, numbered):
    numbered.hold()
    client = await bench.open()
    first = asyncio.ensure_future(say(client, Idempotency_Key="one"))
    await numbered.requests_arrived(1)
    second = asyncio.ensure_future(say(client, Idempotency_Key="one"))
    await bench.joined(1, second)
    numbered.release()
    assert (await first).id == (await second).id and len(numbered.requests) == 1


async def test_the_same_key_gets_its_answer_however_many_calls_came_between(bench, numbered):
    client = await bench.open()
    first = await say(client, Idempotency_Key="one")
    for number in range(100):
        await say(client, Idempotency_Key=f"other-{number}")
        await say(client)
    again = await say(client, Idempotency_Key="one", x_stainless_retry_count=1)
    assert (again.id, again.choices) == (first.id, first.choices)
    assert len(numbered.requests) == 201


async def test_a_key_that_comes_with_another_body_is_refused(bench, numbered):
    client = await bench.open()
    await say(client, Idempotency_Key="one")
    with pytest.raises(openai.UnprocessableEntityError, match="'one' was used with another request") as refused:
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "a letter?"}], extra_headers={KEY: "one"}
        )
    assert (
        refused.value.code == "idempotency_key_reused" and refused.value.response.headers["x-should-retry"] == "false"
    )
    assert len(numbered.requests) == 1


async def test_a_key_of_one_protocol_is_not_one_of_another(bench, numbered):
    client = await bench.open()
    await client.completions.create(model="m", prompt="hi", extra_headers={KEY: "one"})
    with pytest.raises(openai.UnprocessableEntityError):
        await client.responses.create(model="m", input="hi", extra_headers={KEY: "one"})


async def test_the_same_key_of_two_attempts_is_two_calls(bench, numbered):
    answers = [await say(await bench.open(name), Idempotency_Key="one") for name in ("at-1", "at-2")]
    assert len({answer.id for answer in answers}) == len(numbered.requests) == 2


async def test_a_key_too_long_to_be_one_is_refused(bench, numbered):
    with pytest.raises(openai.BadRequestError, match="300 characters, at most 255"):
        await say(await bench.open(), Idempotency_Key="k" * 300)


async def test_a_keyed_call_whose_client_vanished_is_joined_by_its_key_only(bench, numbered):
    numbered.hold()
    client = await bench.open()
    vanishing = asyncio.ensure_future(say(client, Idempotency_Key="one"))
    await numbered.requests_arrived(1)
    vanishing.cancel()
    await asyncio.gather(vanishing, return_exceptions=True)
    others = [asyncio.ensure_future(say(client, Idempotency_Key="two")), asyncio.ensure_future(say(client))]
    await numbered.requests_arrived(3)
    again = asyncio.ensure_future(say(client, Idempotency_Key="one", x_stainless_retry_count=1))
    await bench.joined(1, again)
    numbered.release()
    assert len({answer.id for answer in await asyncio.gather(again, *others)}) == len(numbered.requests) == 3


async def test_a_keyed_call_that_failed_is_made_again(bench, numbered):
    numbered.fail_next(400, "no")
    client = await bench.open()
    with pytest.raises(openai.BadRequestError):
        await say(client, Idempotency_Key="one")
    first = await say(client, Idempotency_Key="one", x_stainless_retry_count=1)
    assert (await say(client, Idempotency_Key="one", x_stainless_retry_count=2)).id == first.id


async def test_retries_of_equal_calls_without_a_key_go_to_a_call_each(bench, numbered):
    client = await bench.open()
    first = {(await say(client)).id for _ in range(3)}
    again = {(await say(client, x_stainless_retry_count=1)).id for _ in range(3)}
    assert again == first and len(numbered.requests) == 3
    assert {(await say(client, x_stainless_retry_count=2)).id for _ in range(3)} == first


async def test_a_retry_without_a_key_is_of_the_latest_of_equal_calls(bench, numbered):
    client = await bench.open()
    first, second = await say(client), await say(client)
    assert (await say(client, x_stainless_retry_count=1)).id == second.id != first.id


async def test_a_retry_of_a_failed_call_does_not_get_the_answer_of_an_equal_one(bench, numbered):
    client = await bench.open()
    answered = await say(client)
    numbered.fail_next(400, "no")
    with pytest.raises(openai.BadRequestError):
        await say(client)
    assert (await say(client, x_stainless_retry_count=1)).id != answered.id
    assert len(numbered.answers) == 2


@pytest.mark.parametrize("count", ["1e3", "-1", "٣", "9" * 5000, "once"])
async def test_a_count_that_is_no_number_still_marks_a_retry(bench, numbered, count):
    await bench.open()
    headers = {"Authorization": f"Bearer {bench.keys['at-1']}"}
    body = {"model": "m", "messages": ASK}
    found = []
    async with aiohttp.ClientSession(headers=headers) as http:
        for extra in ({}, {TRIED: count}):
            async with http.post(f"{bench.url()}/chat/completions", json=body, headers=extra) as response:
                found.append((await response.json())["id"])
    assert found[0] == found[1] and len(numbered.requests) == 1


async def test_a_keyed_stream_is_told_again_word_by_word(bench, numbered):
    client = await bench.open()
    told = []
    for _ in range(2):
        stream = await client.chat.completions.create(model="m", messages=ASK, stream=True, extra_headers={KEY: "one"})
        told.append([chunk.model_dump() async for chunk in stream])
    assert told[0] == told[1] and len(numbered.requests) == 1


async def test_a_retry_of_messages_in_anthropics_protocol_is_told_by_its_key(bench, numbered):
    await bench.open()
    body = {"model": "m", "max_tokens": 99, "messages": ASK}
    headers = {"x-api-key": bench.keys["at-1"], "anthropic-version": "2023-06-01"}
    found = []
    async with aiohttp.ClientSession(headers=headers) as http:
        for key, more in (("one", {}), ("two", {}), ("one", {}), ("one", {"temperature": 0.5})):
            async with http.post(f"{bench.url()}/messages", json=body | more, headers={KEY: key}) as response:
                answer = await response.json()
                found.append(answer.get("id") or (response.status, answer["error"]["type"]))
    assert found[0] == found[2] != found[1] and found[3] == (422, "invalid_request_error")
    assert len(numbered.requests) == 2


async def test_whoever_waits_for_a_call_that_is_cancelled_before_it_began_is_told() -> None:
    async def serve(call: Call) -> list[Any]:
        return []

    call = CallTable().start(b"", FIRST_TRY, serve)
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await call.answers()


async def test_a_client_that_stops_waiting_leaves_the_call_to_the_others() -> None:
    asked = asyncio.Event()

    async def serve(call: Call) -> list[Any]:
        await asked.wait()
        raise Refusal(400, "no")

    call = CallTable().start(b"", FIRST_TRY, serve)
    waiting = [asyncio.ensure_future(call.answers()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    asked.set()
    for one, kind in zip(waiting, (asyncio.CancelledError, Refusal, Refusal), strict=True):
        with pytest.raises(kind):
            await asyncio.wait_for(one, 5)
    with pytest.raises(Refusal):
        await call.answers()
