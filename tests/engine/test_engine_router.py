"""The engine client against scripted servers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiohttp import web
from engine_helpers import ask, says

from slime_agl.engine import router, workers
from slime_agl.engine.base import EngineInfo
from slime_agl.errors import EngineRejected, EngineUnavailable


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_sampled_tokens_come_back_as_the_engine_wrote_them(fake_sglang, connect):
    fake_sglang.say("hi")
    engine = await connect(fake_sglang.url)
    sampled = await engine.generate(ask([5, 6, 7], "ro-1", "session-1", temperature=0.7))
    sent, got = fake_sglang.answers[0], fake_sglang.requests[0]
    assert (tuple(sampled.ids), tuple(sampled.logprobs)) == (sent.ids, sent.logprobs)
    assert (sampled.finish, sampled.prompt_tokens, sampled.weight_version) == ("stop", 3, "1")
    assert (got.input_ids, got.rid, got.sampling_params) == ((5, 6, 7), "ro-1", {"temperature": 0.7})
    assert got.headers["x-smg-routing-key"] == "session-1"
    assert got.json["return_logprob"] is True


async def test_a_long_prompt_is_sent_without_complaint(fake_sglang, connect):
    fake_sglang.context_length = 10**6
    fake_sglang.say("ok")
    engine = await connect(fake_sglang.url)
    await engine.generate(ask([100] * 300_000))
    assert len(fake_sglang.requests[0].input_ids) == 300_000


async def test_passing_faults_are_tried_again_under_new_request_ids(fake_sglang, connect):
    fake_sglang.fail_next(503).fail_next(0).say("ok")
    engine = await connect(fake_sglang.url, rekey_after=9)
    await engine.generate(ask([1], "ro-1"))
    assert [request.rid for request in fake_sglang.requests] == ["ro-1", "1~ro-1", "2~ro-1"]
    assert (engine.counters.requests, engine.counters.retries, engine.counters.in_flight) == (1, 2, 0)


async def test_a_request_whose_answer_was_lost_is_ended_at_the_worker(fake_sglang, connect):
    fake_sglang.fail_next(0).say("ok")
    engine = await connect(fake_sglang.url)
    await engine.generate(ask([1], "ro-1"))
    assert fake_sglang.control == [("/abort_request", {"rid": "ro-1"})]


async def test_repeated_failures_change_the_routing_key_for_good(fake_sglang, connect):
    fake_sglang.fail_next(500, times=2).say("one").say("two")
    engine = await connect(fake_sglang.url, rekey_after=2)
    await engine.generate(ask([1], "a"))
    await engine.generate(ask([1], "b"))
    assert [request.headers["x-smg-routing-key"] for request in fake_sglang.requests] == ["s", "s", "s~1", "s~1"]
    assert engine.keys.rekeys == 1


async def test_a_busy_engine_keeps_its_sessions(fake_sglang, connect):
    fake_sglang.fail_next(429, times=4).say("ok")
    engine = await connect(fake_sglang.url, rekey_after=2)
    await engine.generate(ask([1]))
    assert engine.keys.rekeys == 0


async def test_retries_end_with_both_numbers_and_the_last_words(fake_sglang, connect):
    fake_sglang.fail_next(500, "out of memory", times=9)
    engine = await connect(fake_sglang.url, max_retries=2)
    with pytest.raises(EngineUnavailable, match="failed 3 times on request r, .* HTTP 500: out of memory") as caught:
        await engine.generate(ask([1]))
    assert caught.value.status == 500
    assert len(fake_sglang.requests) == 3


class Wrong:
    """Answers of a server that says `first` for the first requests, then what is right; each under its own rid."""

    def __init__(self, *first: dict[str, Any] | bytes) -> None:
        self.first, self.rids, self.aborted, self.connections = list(first), [], [], []

    def routes(self) -> dict[str, Any]:
        return {"POST /generate": self.generate, "POST /abort_request": self.abort, "GET /health": says({})}

    async def generate(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.rids.append(rid)
        self.connections.append(request.transport)
        right = {
            "id": rid,
            "finish_reason": {"type": "stop"},
            "completion_tokens": 1,
            "weight_version": "1",
            "output_token_logprobs": [[-0.5, 7, None]],
        }
        said = self.first.pop(0) if self.first else {}
        if isinstance(said, bytes):
            return web.Response(body=said, content_type="application/json")
        return web.json_response({"output_ids": [7], "meta_info": {**right, **said}})

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "somebody"},
        {"completion_tokens": 2},
        {"output_token_logprobs": [[-0.5, 7], [-0.5, 7]]},
        {"output_token_logprobs": [[0.5, 7]]},
        {"output_token_logprobs": [[-0.5, True]]},
        {"weight_version": []},
        {"finish_reason": 5},
        {"output_token_logprobs": [[-0.5, 99]]},
        b'{"meta_info": {"id": ',
        b"<html>",
    ],
)
async def test_a_wrong_answer_is_tried_again_on_another_connection(serve, connect, wrong):
    server = Wrong({}, wrong)
    engine = await connect(await serve(server.routes()), vocab_size=50)
    await engine.generate(ask([1], "before"))
    sampled = await engine.generate(ask([1], "ro-1"))
    assert (list(sampled.ids), list(sampled.logprobs), engine.counters.retries) == ([7], [-0.5], 1)
    assert server.rids == ["before", "ro-1", "1~ro-1"]
    before, wrong_one, after = server.connections
    assert before is wrong_one and after is not wrong_one and wrong_one.is_closing()


async def test_a_request_whose_answer_was_anothers_is_ended_at_the_worker(serve, connect):
    server = Wrong({"id": "somebody"})
    engine = await connect(await serve(server.routes()))
    await engine.generate(ask([1], "ro-1"))
    assert server.aborted == ["ro-1"]


async def test_an_engine_that_only_gives_wrong_answers_is_unavailable_in_the_words_of_the_last(serve, connect):
    server = Wrong(*[{"completion_tokens": 2}] * 99)
    engine = await connect(await serve(server.routes()))
    words = "failed 5 times on request r, the last time with the answer to request 4~r has 1 entries .* says 2; look at"
    with pytest.raises(EngineUnavailable, match=words) as caught:
        await engine.generate(ask([1]))
    assert caught.value.status == 200


async def test_the_vocabulary_that_the_engine_names_bounds_its_ids(fake_sglang, connect):
    size = len(fake_sglang.tokenizer)
    fake_sglang.say(ids=[size]).say(ids=[size - 1])
    engine = await connect(fake_sglang.url)
    assert list((await engine.generate(ask([1]))).ids) == [size - 1]


async def test_an_answer_without_end_is_cut_off(serve, connect):
    server = Wrong(b" " * (3 << 20), {})
    engine = await connect(await serve(server.routes()))
    sampled = await engine.generate(ask([1], max_new_tokens=1))
    assert list(sampled.ids) == [7] and engine.counters.retries == 1


async def test_a_refusal_is_passed_on_at_once(fake_sglang, connect):
    fake_sglang.context_length = 4
    engine = await connect(fake_sglang.url)
    with pytest.raises(EngineRejected, match=r"HTTP 400: .*\(5 tokens\) is longer .*\(4 tokens\)") as caught:
        await engine.generate(ask([1, 2, 3, 4, 5]))
    assert (caught.value.status, len(fake_sglang.requests)) == (400, 1)


async def test_a_worker_that_dies_after_the_start_is_named(fake_sglang, connect):
    engine = await connect(fake_sglang.url, max_retries=1)
    fake_sglang.stop()
    with pytest.raises(EngineUnavailable, match="no connection"):
        await engine.generate(ask([1]))


async def test_the_deadline_covers_all_tries(fake_sglang, connect):
    fake_sglang.hold().say("late")
    engine = await connect(fake_sglang.url, timeout=0.05)
    with pytest.raises(EngineUnavailable, match=r"did not answer request r within 0.05 s"):
        await engine.generate(ask([1]))
    assert engine.counters.in_flight == 0


async def test_a_request_id_names_one_request(fake_sglang, connect):
    fake_sglang.hold().say("ok")
    engine = await connect(fake_sglang.url)
    first = asyncio.ensure_future(engine.generate(ask([1])))
    await fake_sglang.requests_arrived(1)
    with pytest.raises(EngineRejected, match="in flight already"):
        await engine.generate(ask([1]))
    fake_sglang.release()
    assert (await first).finish == "stop"


async def test_an_abort_brings_back_what_was_sampled(fake_sglang, connect):
    fake_sglang.hold().abort_partial(1).say("hi")
    engine = await connect(fake_sglang.url)
    call = asyncio.ensure_future(engine.generate(ask([1], "ro-1")))
    await fake_sglang.requests_arrived(1)
    await engine.abort("ro-1")
    sampled = await call
    assert (tuple(sampled.ids), sampled.finish) == (fake_sglang.answers[0].ids, "abort")
    assert len(sampled.ids) == 1


async def test_an_abort_that_overtakes_its_request_still_ends_it(serve, connect, monkeypatch):
    monkeypatch.setattr(router, "ABORT_PAUSES", (0.01,) * 200)
    told, arrived, ended = [], asyncio.Event(), asyncio.Event()

    async def generate(_: web.Request) -> web.Response:
        arrived.set()
        await ended.wait()
        return web.json_response({"meta_info": {"finish_reason": {"type": "abort"}, "completion_tokens": 0}})

    async def abort(request: web.Request) -> web.Response:
        told.append(await request.json())
        if len(told) == 3:
            ended.set()
        return web.Response()

    url = await serve({"POST /generate": generate, "POST /abort_request": abort, "GET /health": says({})})
    engine = await connect(url)
    call = asyncio.ensure_future(engine.generate(ask([1], "ro-1")))
    await arrived.wait()
    await engine.abort("ro-1")
    assert (await call).finish == "abort"
    assert told == [{"rid": "ro-1"}] * 3


async def test_a_worker_that_does_not_obey_loses_its_connection(serve, connect, monkeypatch):
    monkeypatch.setattr(router, "ABORT_PAUSES", (0.0, 0.0))

    arrived = asyncio.Event()

    async def never(_: web.Request) -> web.Response:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError

    url = await serve({"POST /generate": never, "POST /abort_request": says({}), "GET /health": says({})})
    engine = await connect(url)
    call = asyncio.ensure_future(engine.generate(ask([1], "ro-1")))
    await arrived.wait()
    await engine.abort("ro-1")
    sampled = await call
    assert (len(sampled.ids), sampled.finish) == (0, "abort")


async def test_an_abort_between_two_tries_ends_the_call(fake_sglang, connect):
    fake_sglang.fail_next(503)
    engine = await connect(fake_sglang.url, backoff=router.Backoff(first=60.0, longest=60.0))
    call = asyncio.ensure_future(engine.generate(ask([1], "ro-1")))
    await fake_sglang.requests_arrived(1)
    await engine.abort("ro-1")
    assert (await call).finish == "abort"
    assert len(fake_sglang.requests) == 1


async def test_an_abort_reaches_every_worker_and_survives_dead_ones(serve, connect, monkeypatch):
    told = []

    async def abort(request: web.Request) -> web.Response:
        told.append(request.host)
        return web.Response()

    one, two = await serve({"POST /abort_request": abort}), await serve({"POST /abort_request": abort})
    listed = [{"url": url} for url in (one, f"http://127.0.0.1:{closed_port()}", f"{two}@1")]
    engine = await connect(await serve({"GET /workers": says({"workers": listed})}))
    await engine.abort("unknown")
    assert sorted(told) == sorted(url.removeprefix("http://") for url in (one, two))


async def test_a_worker_that_does_not_answer_is_left_alone_for_a_while(serve, connect, monkeypatch):
    asked = []
    post = workers.Workers._post

    async def counted(self, base, path, content):
        asked.append(base)
        return await post(self, base, path, content)

    monkeypatch.setattr(workers.Workers, "_post", counted)
    dead = f"http://127.0.0.1:{closed_port()}"
    engine = await connect(await serve({"GET /workers": says({"workers": [{"url": dead}]})}))
    await engine.abort("a")
    await engine.abort("b")
    assert asked == [dead]


async def test_cancelling_drops_the_connection_so_that_the_worker_notices(fake_sglang, connect):
    fake_sglang.hold().say("ok")
    engine = await connect(fake_sglang.url)
    call = asyncio.ensure_future(engine.generate(ask([1])))
    await fake_sglang.requests_arrived(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(fake_sglang.wait_until_idle)
    assert engine.counters.in_flight == 0


async def test_many_requests_at_once_keep_their_answers_apart(fake_sglang, connect):
    fake_sglang.answer_with(lambda request: str(request.input_ids[0]))
    engine = await connect(fake_sglang.url)
    answers = await asyncio.gather(*(engine.generate(ask([number], f"r{number}")) for number in range(200)))
    assert [fake_sglang.tokenizer.decode(answer.ids[:-1]) for answer in answers] == [str(n) for n in range(200)]


async def test_start_names_the_address_and_the_flags_when_nothing_answers(connect):
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(EngineUnavailable, match=rf"answers at {url} .*--sglang-router-ip and --sglang-router-port"):
        await connect(url, start_timeout=0.05)


async def test_start_tells_a_router_without_workers(serve, connect):
    url = await serve({"GET /workers": says({"workers": []}), "GET /health": says({})})
    with pytest.raises(EngineUnavailable, match=f"the router at {url} has no workers"):
        await connect(url, start_timeout=1.0)


async def test_start_tells_a_server_that_is_not_healthy(serve, connect):
    url = await serve({"GET /health": says({}, status=503)})
    with pytest.raises(EngineUnavailable, match="/health answers HTTP 503"):
        await connect(url, start_timeout=1.0)


def test_an_address_without_a_scheme_is_refused():
    with pytest.raises(ValueError, match="http://"):
        router.RouterEngine("127.0.0.1:30000")


async def test_info_comes_from_the_first_worker(fake_sglang, serve, connect):
    listed = {"workers": [{"url": f"http://127.0.0.1:{closed_port()}"}, {"url": fake_sglang.url}]}
    about_itself = {"router_manager": True}
    engine = await connect(await serve({"GET /workers": says(listed), "GET /get_server_info": says(about_itself)}))
    assert await engine.info() == EngineInfo("fake", 32768, "1", len(fake_sglang.tokenizer))


@pytest.mark.parametrize(
    ("server", "length"),
    [
        ({"context_length": 4096, "max_total_num_tokens": 9000, "max_req_input_len": 4090}, 4090),
        ({"context_length": None, "max_total_num_tokens": 9000}, 9000),
        ({"model_config": {"context_len": 2048}}, 2048),
        ({"version": "x"}, None),
    ],
)
async def test_context_length_is_the_tightest_limit_named(serve, connect, server, length):
    engine = await connect(await serve({"GET /health": says({}), "GET /server_info": says(server)}))
    assert (await engine.info()).context_length == length


async def test_info_is_unknown_when_nobody_tells(serve, connect):
    engine = await connect(await serve({"GET /health": says({})}))
    assert await engine.info() == EngineInfo()


async def test_close_may_be_called_twice(fake_sglang, connect):
    engine = await connect(fake_sglang.url)
    await engine.close()
    await engine.close()


async def test_all_requests_of_another_process_are_aborted_with_their_retries(fake_sglang, connect):
    fake_sglang.hold().abort_partial(1).answer_with(lambda request: "hi")
    dead, alive = await connect(fake_sglang.url), await connect(fake_sglang.url)
    rids = ["worker-1.at-1", "3~worker-1.at-2", "worker-11.at-3", "worker-2.at-4"]
    running = {rid: asyncio.ensure_future(dead.generate(ask([1], rid))) for rid in rids}
    await asyncio.to_thread(fake_sglang.wait_for_requests, len(rids))
    await alive.abort_all_of("worker-1.")
    assert [(await running[rid]).finish for rid in rids[:2]] == ["abort", "abort"]
    assert not any(running[rid].done() for rid in rids[2:])
    fake_sglang.release()
    assert [(await running[rid]).finish for rid in rids[2:]] == ["stop", "stop"]
