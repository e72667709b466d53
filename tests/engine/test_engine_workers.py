"""Control calls: what workers report of their load and themselves, and what they omit."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from engine_helpers import says

from slime_agl.engine import workers
from slime_agl.engine.base import EngineInfo, Load
from slime_agl.engine.workers import pending_requests


@pytest.mark.parametrize(
    ("load", "held"),
    [
        ({"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}, {"num_running_reqs": 3}]}, 6),
        ({"loads": [{"num_total_reqs": 4, "num_running_reqs": 1}]}, 4),
        ([{"dp_rank": 0, "num_reqs": 1}, {"dp_rank": 1, "num_reqs": 0}], 1),
        ({"total_running_reqs": 0, "total_waiting_reqs": 0}, 0),
        (None, None),
        ({}, None),
        ([], None),
        ({"loads": []}, None),
        ({"loads": {}}, None),
        ("idle", None),
        (0, None),
        ({"loads": [{"num_running_reqs": 0}, {}]}, None),
        ({"num_reqs": False}, None),
        ({"num_reqs": "0"}, None),
        ({"num_reqs": -1}, None),
        ({"num_reqs": 0.0}, None),
        ({"num_running_reqs": 0, "num_waiting_reqs": "none"}, None),
    ],
)
def test_a_load_is_a_count_or_it_is_unknown(load: Any, held: int | None):
    assert pending_requests(load) == held


RANK = {"num_running_reqs": 3, "num_waiting_reqs": 1, "token_usage": 0.25, "max_total_num_tokens": 1000}


@pytest.mark.parametrize(
    ("loads", "load"),
    [
        ([RANK, {**RANK, "token_usage": 0.5}], Load(6, 2, 0.5, 2000)),
        ([{"num_running_reqs": 3, "num_waiting_reqs": 0}], Load(3, 0)),
        ([{**RANK, "token_usage": 7.0, "max_total_num_tokens": -1}], Load(3, 1)),
        ([RANK, {**RANK, "max_total_num_tokens": None}], Load(6, 2, 0.25)),
        ([RANK, {"num_running_reqs": 3}], None),
        ([], None),
        ("idle", None),
    ],
)
async def test_a_reported_load_is_of_all_ranks_or_unknown(serve, connect, loads, load):
    url = await serve({"GET /v1/loads": says({"loads": loads}), "GET /health": says({})})
    assert await (await connect(url)).reported_load() == load


async def test_an_engine_that_reports_no_load_has_none(serve, connect):
    assert await (await connect(await serve({"GET /health": says({})}))).reported_load() is None


@pytest.mark.parametrize("loads", [says({}), says({}, 404), says({"loads": "none"}), says({}, 500)])
async def test_a_worker_that_does_not_say_what_it_holds_is_told_to_end_it_and_named_once(
    serve, connect, caplog, monkeypatch, loads
):
    monkeypatch.setattr(workers, "QUIET_LONGEST_PAUSE", 0.0)
    told = []

    async def abort(request: web.Request) -> web.Response:
        told.append(await request.json())
        return web.Response()

    url = await serve({"GET /v1/loads": loads, "POST /abort_request": abort, "GET /health": says({})})
    engine = await connect(url)
    await engine.quiet()
    await engine.quiet()
    assert told and all(body == {"abort_all": True} for body in told)
    named = [record.message for record in caplog.records if "does not say how many requests it holds" in record.message]
    assert len(named) == 1 and named[0].startswith(url)


async def test_an_older_worker_is_asked_in_its_own_way(serve, connect, caplog):
    asked = []

    async def load(_: web.Request) -> web.Response:
        asked.append(1)
        return web.json_response([{"dp_rank": 0, "num_reqs": 0}])

    engine = await connect(await serve({"GET /get_load": load, "GET /health": says({})}))
    await engine.quiet()
    assert asked == [1] and "does not say" not in caplog.text


async def test_a_worker_that_is_gone_holds_nothing(fake_sglang, connect, caplog):
    engine = await connect(fake_sglang.url)
    fake_sglang.stop()
    await engine.quiet()
    assert caplog.records == []


@pytest.mark.parametrize("value", [True, "4096", -1, 4096.0, [4096], None])
async def test_what_an_engine_says_of_itself_in_wrong_types_is_unknown(serve, connect, value):
    model = {"model_path": 7, "weight_version": {"a": 1}, "vocab_size": value}
    server = {"context_length": value, "max_total_num_tokens": value, "model_config": [value]}
    engine = await connect(
        await serve({"GET /health": says({}), "GET /server_info": says(server), "GET /model_info": says(model)})
    )
    assert await engine.info() == EngineInfo()


@pytest.mark.parametrize("listed", [{"workers": [{"url": 7}, {"url": "grpc://h:1"}, 3, None]}, {"workers": "x"}, [], 7])
async def test_a_list_of_workers_in_wrong_types_names_none(serve, connect, listed):
    url = await serve({"GET /workers": says(listed), "GET /health": says({})})
    engine = await connect(url)
    assert await engine._workers.urls(fresh=True) == (url,)


async def test_a_control_answer_without_end_is_none(serve, connect, monkeypatch):
    monkeypatch.setattr(workers, "LARGEST_CONTROL", 1000)
    engine = await connect(
        await serve({"GET /health": says({}), "GET /server_info": says({"context_length": 8, "x": "y" * 1000})})
    )
    assert (await engine.info()).context_length is None
