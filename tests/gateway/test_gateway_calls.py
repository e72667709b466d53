"""An agent's call: who may make it, and its fate when clients vanish, engines abort and attempts end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from slime_agl.errors import ConfigError, EngineUnavailable, SlimeAglError
from slime_agl.gateway.http.connections import Connection
from slime_agl.trace.segments import segments

ASK: list[Any] = [{"role": "user", "content": "hi"}]


async def say(client: openai.AsyncOpenAI, messages: Any = ASK, **more: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=messages, **more)


async def gone(client: openai.AsyncOpenAI, fake: Any, arrived: int) -> None:
    """Make a call and drop its connection once the engine has it."""
    task = asyncio.ensure_future(say(client))
    await fake.requests_arrived(arrived)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_turn_is_committed_before_it_is_answered(bench, fake_sglang):
    fake_sglang.say("hello")
    client = await bench.open()
    answer = await say(client)
    ((_, attempt, turn),) = bench.notes.turns
    assert attempt == "at-1" and answer.id == turn.turn_id
    assert tuple(turn.output_ids()) == fake_sglang.answers[0].ids
    assert list(turn.output_logprobs()) == list(fake_sglang.answers[0].logprobs)
    assert turn.started <= turn.ended and turn.engine_seconds > 0


async def test_a_session_is_pinned_to_its_engine_and_its_requests_have_ids(bench, fake_sglang):
    fake_sglang.say("hello")
    await say(await bench.open())
    (request,) = fake_sglang.requests
    assert request.headers["x-smg-routing-key"] == "session-at-1"
    assert request.rid.startswith("at-1-")


async def test_another_attempts_key_is_refused_and_a_placeholder_is_not(bench, fake_sglang):
    fake_sglang.answer_with(lambda request: "ok")
    await bench.open("at-1")
    await bench.open("at-2")
    await say(bench.client("at-1", key="dummy"))
    with pytest.raises(openai.AuthenticationError):
        await say(bench.client("at-1", key=bench.keys["at-2"]))
    with pytest.raises(openai.AuthenticationError):
        await say(bench.client("at-1", key="sk-agl-guessed"))


async def test_a_required_key_lets_no_placeholder_in(make_bench, fake_sglang):
    fake_sglang.answer_with(lambda request: "ok")
    bench = make_bench(auth="required")
    await say(await bench.open())
    with pytest.raises(openai.AuthenticationError):
        await say(bench.client(key="dummy"))


async def test_beyond_loopback_keys_are_required(make_bench, fake_sglang):
    await (bench := make_bench(host="0.0.0.0")).open()
    with pytest.raises(openai.AuthenticationError):
        await say(bench.client(key="dummy"))


async def test_an_attempt_that_was_never_opened_is_404(bench):
    with pytest.raises(openai.NotFoundError, match="no attempt at-9 of rollout ro-1"):
        await say(bench.client("at-9", key="dummy"))


async def test_after_sealing_requests_get_409_and_are_not_recorded(bench, fake_sglang):
    fake_sglang.say("hello")
    client = await bench.open()
    await say(client)
    left = await bench.seal()
    with pytest.raises(openai.ConflictError, match="has ended"):
        await say(client)
    assert len(left.ledger.turns) == 1 and len(fake_sglang.requests) == 1
    assert left.final_text == "hello"
    with pytest.raises(SlimeAglError, match="not open"):
        await bench.seal()


async def test_sealing_aborts_what_is_in_flight_and_keeps_it_untrained(bench, fake_sglang):
    fake_sglang.say("a long answer").hold().abort_partial(3)
    client = await bench.open()
    call = asyncio.ensure_future(say(client))
    await fake_sglang.requests_arrived(1)
    left = await bench.seal()
    with pytest.raises(openai.ConflictError):
        await call
    assert fake_sglang.in_flight == 0
    (turn,) = left.ledger.turns
    assert (turn.untrained, turn.output_length) == ("sealed", 3)
    assert segments(left.ledger) == ()


async def test_a_call_whose_client_is_gone_is_aborted_after_the_grace(bench, fake_sglang, monkeypatch):
    monkeypatch.setattr("slime_agl.gateway.sessions.calls.GRACE_SECONDS", 0.0)
    fake_sglang.say("never heard").hold().abort_partial(2)
    client = await bench.open()
    await gone(client, fake_sglang, 1)
    await asyncio.to_thread(fake_sglang.wait_until_idle)
    (turn,) = (await bench.seal()).ledger.turns
    assert (turn.untrained, turn.output_length) == ("abandoned", 2)


async def test_a_retry_joins_the_call_whose_client_vanished(bench, fake_sglang):
    fake_sglang.say("once").hold()
    client = await bench.open()
    await gone(client, fake_sglang, 1)
    again = asyncio.ensure_future(say(client))
    await bench.joined(1, again)
    fake_sglang.release()
    assert (await again).choices[0].message.content == "once"
    left = await bench.seal()
    assert len(fake_sglang.requests) == len(left.ledger.turns) == 1
    assert left.ledger.turns[0].untrained == ""


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_vanishes_while_it_is_answered_is_no_error(bench, fake_sglang, monkeypatch, caplog, stream):
    send, vanished = Connection.send, False

    def vanish(connection: Connection, data: bytes) -> None:
        nonlocal vanished
        if not vanished:
            vanished = True
            connection.abort()
        send(connection, data)

    monkeypatch.setattr(Connection, "send", vanish)
    fake_sglang.say("once")
    client = await bench.open()
    with contextlib.suppress(openai.APIConnectionError, httpx.RemoteProtocolError):
        answer = await say(client, stream=stream)
        if stream:
            async for _ in answer:
                pass
    assert vanished
    assert (await say(client, stream=stream)) and len(fake_sglang.requests) == 1
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_marked_retry_gets_the_committed_answer_again(bench, fake_sglang):
    fake_sglang.say("once")
    client = await bench.open()
    first = await say(client)
    second = await say(client, extra_headers={"x-stainless-retry-count": "1"})
    assert first.id == second.id and len(fake_sglang.requests) == 1


async def test_identical_calls_without_a_mark_are_samples_of_their_own(bench, fake_sglang):
    fake_sglang.say("one").say("two")
    client = await bench.open()
    texts = {(await say(client)).choices[0].message.content for _ in range(2)}
    assert texts == {"one", "two"}
    left = await bench.seal()
    assert [turn.fork for turn in left.ledger.turns] == ["", "new_conversation"]


async def test_an_abort_is_continued_from_its_partial_output(bench, fake_sglang):
    """What a weight update does: all requests are aborted, generation goes on under new weights."""
    fake_sglang.say("one two three").hold().abort_partial(4)
    client = await bench.open()
    call = asyncio.ensure_future(say(client, max_tokens=40))
    await fake_sglang.requests_arrived(1)
    async with aiohttp.ClientSession() as http:
        fake_sglang.weight_version = "2"
        await http.post(f"{fake_sglang.url}/abort_request", json={"abort_all": True})
    await fake_sglang.requests_arrived(2)
    fake_sglang.release()
    assert (await call).choices[0].message.content == "one two three"
    first, second = fake_sglang.requests
    assert second.input_ids == first.input_ids + fake_sglang.answers[0].ids
    assert second.sampling_params["max_new_tokens"] == 36
    (turn,) = (await bench.seal()).ledger.turns
    assert [part.finish for part in turn.parts] == ["abort", "stop"]
    assert turn.parts[-1].weight_version == "2"


async def test_a_constrained_turn_that_is_cut_begins_anew(bench, fake_sglang):
    """The engine would start the grammar afresh in the middle of the JSON; what was cut off is counted, not trained."""
    fake_sglang.say('{"a": 1}').say('{"a": 2}').hold().abort_partial(3)
    client = await bench.open()
    call = asyncio.ensure_future(say(client, response_format={"type": "json_object"}))
    await fake_sglang.requests_arrived(1)
    async with aiohttp.ClientSession() as http:
        await http.post(f"{fake_sglang.url}/abort_request", json={"abort_all": True})
    await fake_sglang.requests_arrived(2)
    fake_sglang.release()
    assert (await call).choices[0].message.content == '{"a": 2}'
    first, second = fake_sglang.requests
    assert second.input_ids == first.input_ids and second.sampling_params == first.sampling_params
    left = await bench.seal()
    dropped, turn = left.ledger.turns
    assert (dropped.untrained, tuple(dropped.output_ids())) == ("restarted", fake_sglang.answers[0].ids)
    assert left.counters["restarted_turns"] == 1 and left.counters["continued_turns"] == 0
    (segment,) = segments(left.ledger)
    assert segment.turns == (turn,) and segment.trained_tokens == len(fake_sglang.answers[1].ids)


async def test_a_failing_engine_is_tried_again_and_then_told(bench, fake_sglang):
    fake_sglang.fail_next(500).say("back")
    client = await bench.open()
    assert (await say(client)).choices[0].message.content == "back"
    fake_sglang.fail_next(400, "no such parameter")
    with pytest.raises(openai.BadRequestError, match="no such parameter"):
        await say(client)
    assert "no such parameter" in (await bench.seal()).engine_errors[0].message


async def test_an_answer_to_other_tokens_is_asked_for_again(bench, fake_sglang):
    fake_sglang.say("not yours", meta={"prompt_tokens": 3}).say("back")
    client = await bench.open()
    assert (await say(client)).choices[0].message.content == "back"
    left = await bench.seal()
    assert left.broken is None and len(left.ledger.turns) == 1


async def test_an_engine_that_saw_other_tokens_breaks_the_session(bench, fake_sglang, monkeypatch):
    monkeypatch.setattr("slime_agl.engine.generate._prompt_tokens", lambda *_: 3)
    fake_sglang.say("hi")
    client = await bench.open()
    with pytest.raises(openai.InternalServerError, match="reports a prompt of 3 tokens, but it was sent"):
        await say(client)
    assert "a prompt of 3 tokens" in str((await bench.seal()).broken)


async def test_a_stream_that_breaks_after_it_began_ends_with_an_error_event(bench, fake_sglang, monkeypatch, caplog):
    monkeypatch.setattr("slime_agl.gateway.http.app.KEEP_ALIVE_SECONDS", 0.001)
    monkeypatch.setattr("slime_agl.engine.generate._prompt_tokens", lambda *_: 3)
    fake_sglang.say("x").hold()
    await bench.open()
    body = {"model": "m", "messages": ASK, "stream": True}
    headers = {"Authorization": f"Bearer {bench.keys['at-1']}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{bench.url()}/chat/completions", json=body) as response,
    ):
        assert (await response.content.readline()).startswith(b":")
        fake_sglang.release()
        last = (await response.read()).split(b"\n\n")[-2].strip()
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["code"] == "gateway_error" and "a prompt of 3 tokens" in error["message"]
    assert "InvariantError" in caplog.text


async def test_a_taken_port_is_a_clear_error(make_bench):
    port = int(make_bench().gateway.url.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=f"cannot bind 127.0.0.1:{port}.*agl.gateway.port"):
        make_bench(port=port)


async def test_no_engine_is_a_clear_error(make_bench, fake_sglang):
    fake_sglang.stop()
    with pytest.raises(EngineUnavailable, match="--sglang-router-ip"):
        make_bench()


async def test_health_models_and_metrics(bench):
    await bench.open()
    async with aiohttp.ClientSession() as http:
        health = await (await http.get(f"{bench.gateway.url}/health")).json()
        metrics = await (await http.get(f"{bench.gateway.url}/metrics")).text()
        missing = await http.get(f"{bench.gateway.url}/v1/nothing")
        assert missing.status == 404 and "error" in await missing.json()
    assert health["open_attempts"] == 1 and "slime_agl_gateway_open_attempts 1" in metrics
    assert [model.id async for model in bench.client().models.list()] == ["policy"]
