"""Replay data: requested per token, refused if misaligned, and routed so that it arrives."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import orjson
import pytest
from engine_helpers import ask, says

from slime_agl.engine import route
from slime_agl.engine.base import EngineRequest, Replay
from slime_agl.engine.faults import WrongAnswer
from slime_agl.engine.generate import read_answer, request_body
from slime_agl.engine.id_text import IdText
from slime_agl.engine.route import PROBE_RID, ranked_first
from slime_agl.errors import ConfigError
from slime_agl.local.engine.router import start_router
from slime_agl.testing import FakeReplay, FakeSGLang

FAKE = FakeReplay(layers=3, choices=2)
BOTH = Replay(experts_width=6, top_p=0.9)
TOP_P = {"top_p": 0.9, "custom_params": {"return_top_p_token_ids": True}}


def asked(start: int = 0, width: int | None = 6, prompt: int = 4) -> EngineRequest:
    return EngineRequest(
        prompt=IdText((), prompt),
        sampling_params=TOP_P,
        rid="r",
        session_key="s",
        experts_width=width,
        experts_from=start,
    )


def answered(request: EngineRequest, ids: list[int], fake: FakeReplay = FAKE, **meta: Any) -> Any:
    body = orjson.loads(b"".join(request_body(request, "r")))
    given = fake.meta(body, range(10, 10 + request.prompt.length), ids)
    given |= {"output_token_logprobs": [[-0.5, token, None] for token in ids], "finish_reason": {"type": "stop"}}
    given |= meta
    return read_answer(
        orjson.dumps({"meta_info": {key: value for key, value in given.items() if value is not None}}),
        request,
        "r",
        vocab_size=251,
    )


@pytest.mark.parametrize("knows_start", [True, False])
@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_each_answer_brings_the_rows_from_the_first_token_wanted_to_the_last_but_one(start: int, knows_start: bool):
    sampled = answered(asked(start), [50, 51], FakeReplay(3, 2, start_len=knows_start))
    inputs = [10, 11, 12, 13, 50]
    rows = [FAKE.experts(at, token) for at, token in enumerate(inputs)][start:]
    assert (sampled.experts.start, sampled.experts.end) == (start, 5)
    assert list(sampled.experts.ids) == [expert for row in rows for expert in row]
    assert sampled.experts.ids.typecode == "B"
    assert list(sampled.top_p.ids) == FAKE.kept(4, 50) + FAKE.kept(5, 51)


def test_the_request_says_from_where():
    body = orjson.loads(b"".join(request_body(asked(3), "r")))
    assert (body["return_routed_experts"], body["routed_experts_start_len"]) == (True, 3)
    assert "return_routed_experts" not in orjson.loads(b"".join(request_body(asked(width=None), "r")))


def test_an_abort_before_the_first_token_needs_no_replay_data():
    sampled = answered(asked(), [], routed_experts=None)
    assert (sampled.experts, sampled.top_p) == (None, None)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"routed_experts": None}, r"\(2 tokens\) has no routed experts"),
        ({"routed_experts": [1] * 29}, "29 routed experts; 5 tokens from position 0 on, of 6 experts each, have 30"),
        ({"routed_experts": [1] * 24}, "24 routed experts; 5 tokens"),
        ({"routed_experts": [-1] * 30}, "hold the id -1"),
        ({"top_p_token_ids": None}, r"\(2 tokens\) has no top-p token sets"),
        ({"top_p_token_offsets": [0, 1]}, "2 top-p offsets, 2 tokens need 3"),
        ({"routed_experts": "no base64!"}, "routed_experts that are not 32-bit integers"),
        ({"routed_experts": "AAA="}, "routed_experts that are not 32-bit integers"),
        ({"routed_experts": ["1"] * 30}, "routed_experts that are not 32-bit integers"),
        ({"routed_experts": [0.5] * 30}, "routed_experts that are not 32-bit integers: it holds float64"),
        ({"routed_experts": [2**40] * 30}, "routed_experts that are not 32-bit integers"),
        ({"routed_experts": [[1], [1, 2]]}, "routed_experts that are not 32-bit integers"),
        ({"routed_experts": {"a": 1}}, "routed_experts that are not 32-bit integers"),
        ({"routed_experts": True}, "routed_experts that are not 32-bit integers"),
        ({"top_p_token_ids": [1, 2], "top_p_token_offsets": [0, 1, 1]}, "must run from 0 to 2"),
        ({"top_p_token_ids": [1, 2], "top_p_token_offsets": [0, 5, 2]}, "fall from 5 to 2 at token 1"),
        ({"top_p_token_ids": [1, 251], "top_p_token_offsets": [0, 1, 2]}, "from 1 to 251, the vocabulary has 251 ids"),
        ({"top_p_token_ids": [1, -2], "top_p_token_offsets": [0, 1, 2]}, "from -2 to 1"),
        ({"top_p_token_ids": "?"}, "top_p_token_ids that are not 32-bit integers"),
    ],
)
def test_replay_data_that_is_missing_or_does_not_fit_is_tried_again(meta: dict[str, Any], words: str):
    with pytest.raises(WrongAnswer, match=words):
        answered(asked(), [50, 51], **meta)


async def test_a_router_that_passes_the_fields_is_used(connect):
    with FakeSGLang(default="hi", replay=FAKE) as fake:
        engine = await connect(fake.url, replay=BOTH)
        await engine.generate(ask([1], **TOP_P))
        assert [path for path, body in fake.control if body["rid"] == PROBE_RID] == ["/generate"]
        assert fake.requests[0].headers["x-smg-routing-key"] == "s"


async def test_without_replay_nothing_is_probed(fake_sglang, connect):
    await connect(fake_sglang.url)
    assert fake_sglang.control == []


async def test_behind_the_real_router_sessions_go_to_their_workers_and_survive_one(connect, tmp_path, caplog):
    """The stock router drops the fields; a dead worker's sessions move, others stay; an abort goes to one worker."""
    pytest.importorskip("sglang_router", reason="the router's wheel is not installed")
    with ExitStack() as stack:
        fakes = [stack.enter_context(FakeSGLang(default="hello", replay=FAKE)) for _ in range(3)]
        urls = [fake.url for fake in fakes]
        router = stack.enter_context(start_router(urls, policy="manual", log=tmp_path / "router.log"))
        engine = await connect(router.url, replay=BOTH)
        assert "requests go to its 3 workers directly" in caplog.text

        def home(key: str) -> FakeSGLang:
            return fakes[urls.index(ranked_first(key, [url for url in urls if url not in dead]))]

        dead: set[str] = set()
        keys = [f"session-{number}" for number in range(24)]
        assert {home(key).url for key in keys} == set(urls)

        async def one_round(number: int) -> None:
            await asyncio.gather(*(engine.generate(_wants(f"{key}-{number}", key)) for key in keys))
            for key in keys:
                rids = [request.rid.rpartition("~")[2] for request in home(key).requests]
                assert rids.count(f"{key}-{number}") == 1

        await one_round(1)
        await one_round(2)
        pinned = home(keys[0])
        pinned.hold().abort_partial(1)
        before = len(pinned.requests)
        call = asyncio.ensure_future(engine.generate(_wants("cut", keys[0])))
        await pinned.requests_arrived(before + 1)
        await engine.abort("cut")
        assert ((await call).finish, len((await call).ids)) == ("abort", 1)
        told = [fake for fake in fakes if ("/abort_request", {"rid": "cut"}) in fake.control]
        assert told == [pinned]

        pinned.stop()
        dead.add(pinned.url)
        await one_round(3)


def _wants(rid: str, key: str) -> EngineRequest:
    return EngineRequest(prompt=IdText((b"1,2",), 2), sampling_params=TOP_P, rid=rid, session_key=key, experts_width=6)


def test_taking_a_worker_away_moves_its_keys_only():
    urls, keys = [f"http://w{number}" for number in range(5)], [f"k{number}" for number in range(500)]
    before = {key: ranked_first(key, urls) for key in keys}
    after = {key: ranked_first(key, urls[1:]) for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != urls[0])
    shares = [list(before.values()).count(url) for url in urls]
    assert min(shares) > 60, shares


async def test_a_worker_that_joins_and_one_that_leaves_the_list_are_noticed(serve, connect, monkeypatch):
    monkeypatch.setattr(route, "FRESH_SECONDS", 0.0)
    with FakeSGLang(default="hi", replay=FAKE) as one, FakeSGLang(default="hi", replay=FAKE) as two:
        listed: dict[str, Any] = {"workers": [{"url": one.url}]}

        async def workers(_: Any) -> Any:
            return await says(listed)(_)

        drops = says({"meta_info": {"output_token_logprobs": [[-0.5, 1]], "finish_reason": {"type": "length"}}})
        engine = await connect(await serve({"GET /workers": workers, "POST /generate": drops}), replay=BOTH)
        await engine.generate(_wants("a", "s"))
        listed["workers"] = [{"url": two.url}]
        await engine.generate(_wants("b", "s"))
        listed["workers"] = []  # a router that has lost its list is no reason to send anything through it
        await engine.generate(_wants("c", "s"))
        assert ([r.rid for r in one.requests], [r.rid for r in two.requests]) == (["a"], ["b", "c"])


async def test_start_is_refused_when_replay_data_arrives_on_no_route(serve, connect):
    with FakeSGLang(default="hi", replay=FAKE) as good, FakeSGLang(default="hi") as stock:
        drops = says({"meta_info": {"output_token_logprobs": [[-0.5, 1]], "finish_reason": {"type": "length"}}})
        listed = says({"workers": [{"url": good.url}, {"url": stock.url}]})
        url = await serve({"GET /workers": listed, "POST /generate": drops})
        with pytest.raises(ConfigError) as caught:
            await connect(url, replay=BOTH)
    words = str(caught.value)
    assert words.startswith("--use-rollout-routing-replay and --rollout-top-p 0.9 needs data that does not arrive")
    assert f"the router at {url}: " in words and f"its worker at {stock.url}: " in words
    assert good.url not in words and "leave the flag out" in words


async def test_workers_that_serve_a_request_together_are_not_asked_one_by_one(serve, connect):
    drops = says({"meta_info": {"output_token_logprobs": [[-0.5, 1]], "finish_reason": {"type": "length"}}})
    pair = [{"url": "http://p", "worker_type": "prefill"}, {"url": "http://d", "worker_type": "decode"}]
    url = await serve({"GET /workers": says({"workers": pair}), "POST /generate": drops})
    with pytest.raises(ConfigError, match=r"its workers \(decode, prefill\) serve each request together"):
        await connect(url, replay=Replay(top_p=0.9))
