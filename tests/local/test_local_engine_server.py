"""SGLang's HTTP interface, over a scripted backend."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from slime_agl.local.engine.scripted import ScriptedBackend, ScriptedReply, synthetic_logprob
from slime_agl.local.engine.server import EngineServer, EngineThread, serve


class Client:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(self, path: str, body: object = None) -> tuple[int, object]:
        async with self._session.post(path, json=body) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith(("{", "[")) else text

    async def get(self, path: str) -> tuple[int, object]:
        async with self._session.get(path) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith(("{", "[")) else text


@pytest.fixture
async def start():
    """Serve a scripted backend; returns it with a client."""
    stack = []

    async def begin(script, **options) -> tuple[ScriptedBackend, Client]:
        backend = ScriptedBackend(script, **options)
        server = await EngineServer(backend, name="policy").start()
        session = aiohttp.ClientSession(server.url)
        stack.append((server, session))
        return backend, Client(session)

    yield begin
    for server, session in stack:
        await session.close()
        await server.stop()


async def test_an_answer_has_the_shape_of_sglangs(start):
    backend, client = await start([ScriptedReply((7, 8, 9), cached_tokens=2)])
    status, answer = await client.post(
        "/generate",
        {"input_ids": [1, 2, 3], "rid": "mine", "return_logprob": True, "sampling_params": {"max_new_tokens": 5}},
    )
    assert status == 200
    assert answer["meta_info"].pop("e2e_latency") >= 0
    assert answer == {
        "text": "7 8 9",
        "output_ids": [7, 8, 9],
        "meta_info": {
            "id": "mine",
            "finish_reason": {"type": "stop", "matched": 9},
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "cached_tokens": 2,
            "weight_version": "default",
            "output_token_logprobs": [[synthetic_logprob(i, t), t, None] for i, t in enumerate((7, 8, 9))],
        },
    }
    (exchange,) = backend.exchanges
    assert exchange.request.body["sampling_params"] == {"max_new_tokens": 5}
    assert exchange.answer.output_ids == (7, 8, 9)


async def test_text_is_encoded_and_the_output_cut_at_the_limit(start):
    backend, client = await start([ScriptedReply((7, 8, 9))])
    _, answer = await client.post("/generate", {"text": "4 5", "sampling_params": {"max_new_tokens": 2}})
    assert backend.exchanges[0].request.input_ids == (4, 5)
    assert answer["output_ids"] == [7, 8]
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert "output_token_logprobs" not in answer["meta_info"]


async def test_a_stream_is_cumulative_events_and_a_done(start):
    _, client = await start([ScriptedReply((7, 8))])
    _, text = await client.post("/generate", {"input_ids": [1], "stream": True})
    first, done = text.strip().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["output_ids"] == [7, 8]
    assert done == "data: [DONE]"


async def test_an_error_after_a_stream_has_begun_is_an_event(start):
    _, client = await start([ScriptedReply(status=503)])
    _, text = await client.post("/generate", {"input_ids": [1], "stream": True})
    assert json.loads(text.split("\n\n")[0].removeprefix("data: ")) == {"error": {"message": "the script answers 503"}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": [1] * 65}, "The input (65 tokens) is longer than the model's context length (64 tokens)."),
        ({"input_ids": [1] * 60, "sampling_params": {"max_new_tokens": 5}}, "context length of 64 tokens: 60 tokens"),
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": [[1], [2]]}, "flat list of integers"),
        ({"input_ids": [1, 100]}, "input_ids contains 100, the vocabulary has 100 ids"),
        ({"input_ids": [1], "text": "1"}, "exactly one of input_ids and text"),
        ({}, "exactly one of input_ids and text"),
        ({"input_ids": [1], "sampling_params": {"top_p": 2}}, "sampling_params.top_p is 2.0"),
        ({"input_ids": [1], "return_routed_experts": True}, "has no return_routed_experts"),
        ({"input_ids": [1], "return_logprobs": True}, "Did you mean 'return_logprob'?"),
        ([1], "the request body is a JSON list"),
    ],
)
async def test_bad_requests_are_refused_before_the_backend_sees_them(start, body, message):
    backend, client = await start([], context_length=64, vocab_size=100)
    status, answer = await client.post("/generate", body)
    assert status == 400
    assert message in answer["error"]["message"]
    assert backend.exchanges == []


async def test_what_the_router_adds_to_a_request_is_accepted(start):
    _, client = await start([ScriptedReply((7,))])
    added = {
        "model": None,
        "return_text_in_logprobs": False,
        "stream": False,
        "log_metrics": True,
        "return_hidden_states": False,
        "background": False,
        "no_logs": False,
        "return_bytes": False,
        "return_entropy": False,
    }
    status, _ = await client.post("/generate", {"input_ids": [1], **added})
    assert status == 200


async def test_an_error_of_the_backend_keeps_its_status(start):
    _, client = await start([ScriptedReply(status=503)])
    assert await client.post("/generate", {"input_ids": [1]}) == (503, {"error": {"message": "the script answers 503"}})


async def test_a_crash_in_the_script_is_a_500_that_names_it(start, caplog):
    _, client = await start(lambda _: 1 / 0)
    status, answer = await client.post("/generate", {"input_ids": [1]})
    assert (status, answer["error"]["message"]) == (500, "ZeroDivisionError: division by zero")


async def test_abort_by_rid_answers_with_partial_output_and_leaves_the_others(start):
    backend, client = await start(lambda _: ScriptedReply((7, 8, 9), hold=True, partial=2))
    asked = [asyncio.create_task(client.post("/generate", {"input_ids": [1], "rid": rid})) for rid in ("a", "b")]
    await asyncio.to_thread(backend.wait_until, pending=2)
    assert await client.post("/abort_request", {"rid": "a"}) == (200, "")
    status, answer = await asked[0]
    assert (status, answer["output_ids"], answer["meta_info"]["finish_reason"]["type"]) == (200, [7, 8], "abort")
    assert (await client.get("/v1/loads"))[1]["loads"][0]["num_running_reqs"] == 1
    backend.release("b")
    assert (await asked[1])[1]["output_ids"] == [7, 8, 9]


async def test_a_pause_with_an_empty_body_aborts_all_and_new_requests_wait(start):
    backend, client = await start(lambda _: ScriptedReply((7, 8, 9), hold=True, partial=1))
    first = asyncio.create_task(client.post("/generate", {"input_ids": [1]}))
    await asyncio.to_thread(backend.wait_until, pending=1)
    assert (await client.get("/flush_cache"))[0] == 400
    assert (await client.post("/pause_generation"))[0] == 200
    assert (await first)[1]["output_ids"] == [7]
    second = asyncio.create_task(client.post("/generate", {"input_ids": [2]}))
    await asyncio.to_thread(backend.wait_until, waiting=1)
    assert (await client.post("/flush_cache"))[0] == 200
    assert (await client.get("/v1/loads"))[1]["aggregate"] == {
        "total_running_reqs": 0,
        "total_waiting_reqs": 1,
        "total_reqs": 1,
    }
    await client.post("/continue_generation", {})
    await asyncio.to_thread(backend.wait_until, pending=1)
    backend.release()
    assert (await second)[1]["output_ids"] == [7, 8, 9]


async def test_a_client_that_goes_away_ends_its_request(start):
    backend, client = await start(lambda _: ScriptedReply((7,), hold=True))
    asked = asyncio.create_task(client.post("/generate", {"input_ids": [1]}))
    await asyncio.to_thread(backend.wait_until, pending=1)
    asked.cancel()
    await asyncio.to_thread(backend.wait_until_answered, 1)
    assert backend.exchanges[0].answer.finish.kind == "abort"


async def test_two_requests_cannot_have_one_rid(start):
    backend, client = await start(lambda _: ScriptedReply((7,), hold=True))
    first = asyncio.create_task(client.post("/generate", {"input_ids": [1], "rid": "a"}))
    await asyncio.to_thread(backend.wait_until, pending=1)
    status, answer = await client.post("/generate", {"input_ids": [1], "rid": "a"})
    assert (status, "already in flight" in answer["error"]["message"]) == (400, True)
    backend.release()
    await first


async def test_weight_versions_are_the_callers_or_count_up(start):
    backend, client = await start(lambda _: ScriptedReply((7,)))
    for body, version in (({}, "1"), ({}, "2"), ({"weight_version": 40}, "40"), ({}, "41")):
        status, answer = await client.post("/update_weights_from_disk", {"model_path": "/weights", **body})
        assert (status, answer["success"]) == (200, True)
        assert (await client.get("/get_weight_version"))[1] == {"weight_version": version}
    assert backend.loaded_paths == ["/weights"] * 4
    assert (await client.post("/generate", {"input_ids": [1]}))[1]["meta_info"]["weight_version"] == "41"


async def test_the_server_says_what_it_serves(start):
    _, client = await start([], context_length=64, model_path="/model")
    for path in ("/health", "/health_generate"):
        assert await client.get(path) == (200, "")
    for path in ("/server_info", "/get_server_info"):
        info = (await client.get(path))[1]
        assert (info["model_path"], info["context_length"], info["tp_size"]) == ("/model", 64, 1)
        assert info["enable_memory_saver"] is False and info["port"] > 0
    assert (await client.get("/get_model_info"))[1]["model_path"] == "/model"
    (model,) = (await client.get("/v1/models"))[1]["data"]
    assert (model["id"], model["max_model_len"]) == ("policy", 64)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/abort_request", {}, "needs rid"),
        ("/pause_generation", {"mode": "abrt"}, "Did you mean 'abort'?"),
        ("/update_weights_from_disk", {}, "needs model_path"),
        ("/no_such_path", {}, "Not Found"),
    ],
)
async def test_control_requests_are_checked_too(start, path, body, message):
    _, client = await start([])
    status, answer = await client.post(path, body)
    assert status in (400, 404)
    assert message in answer["error"]["message"]


async def test_a_taken_port_is_an_error_and_leaves_nothing_running(start):
    async with serve(ScriptedBackend([])) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError):
            await EngineServer(ScriptedBackend([]), port=port).start()


async def test_stopping_answers_what_is_in_flight():
    backend = ScriptedBackend(lambda _: ScriptedReply((7, 8), hold=True, partial=1))
    async with aiohttp.ClientSession() as session, serve(backend) as server:
        client = Client(session)
        asked = asyncio.create_task(client.post(f"{server.url}/generate", {"input_ids": [1]}))
        await asyncio.to_thread(backend.wait_until, pending=1)
        await server.stop()
        assert (await asked)[1]["output_ids"] == [7]


def test_a_thread_of_its_own_serves_a_caller_that_blocks():
    backend = ScriptedBackend(lambda _: ScriptedReply((7,)))

    async def ask(url: str) -> tuple[int, object]:
        async with aiohttp.ClientSession() as session:
            return await Client(session).post(f"{url}/generate", {"input_ids": [1]})

    with EngineThread(backend) as engine:
        assert asyncio.run(ask(engine.url))[1]["output_ids"] == [7]
        port = int(engine.url.rpartition(":")[2])
        with pytest.raises(OSError):
            EngineThread(ScriptedBackend([]), port=port).start()
    engine.stop()
