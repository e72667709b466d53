"""The engine client behind the real sgl-router with slime's settings: no health checks, no circuit breaker."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from engine_helpers import ask

from slime_agl.engine.retry import Backoff
from slime_agl.errors import EngineUnavailable
from slime_agl.local.engine.router import start_router
from slime_agl.testing import FakeSGLang

pytest.importorskip("sglang_router", reason="the router's wheel is not installed")


async def test_sampling_aborts_refusals_and_a_dead_worker(connect, tmp_path):
    with FakeSGLang(default="hello") as one, FakeSGLang(default="hello") as two:
        with start_router([one.url, two.url], policy="manual", log=tmp_path / "router.log") as router:
            engine = await connect(router.url)
            assert (await engine.info()).context_length == 32768

            sampled = await engine.generate(ask([1, 2], "r1", max_new_tokens=9))
            pinned, other = (one, two) if one.requests else (two, one)
            sent = pinned.answers[0]
            assert (tuple(sampled.ids), tuple(sampled.logprobs)) == (sent.ids, sent.logprobs)
            assert pinned.requests[0].headers["x-smg-routing-key"] == "s"

            pinned.hold().abort_partial(2)
            call = asyncio.ensure_future(engine.generate(ask([1], "r2")))
            await pinned.requests_arrived(2)
            await engine.abort("r2")
            assert (len((await call).ids), (await call).finish) == (2, "abort")

            call = asyncio.ensure_future(engine.generate(ask([1], "r3")))
            await pinned.requests_arrived(3)
            call.cancel()
            await asyncio.to_thread(pinned.wait_until_idle)
            pinned.release()

            pinned.stop()
            assert (await engine.generate(ask([9], "r4"))).finish == "stop"
            assert other.requests[0].headers["x-smg-routing-key"].startswith("s~")


async def test_a_dead_worker_costs_a_try_and_gets_nothing_more(connect, tmp_path, caplog):
    """A router without health checks goes on sending to it, `cache_aware` more than to those that live."""
    with ExitStack() as stack:
        fakes = [stack.enter_context(FakeSGLang(default="hello")) for _ in range(2)]
        urls = [fake.url for fake in fakes]
        router = stack.enter_context(start_router(urls, policy="cache_aware", log=tmp_path / "router.log"))
        engine = await connect(router.url, max_retries=4, backoff=Backoff(first=0.25, longest=2.0))

        async def one_round(number: int) -> int:
            before = engine.counters.retries
            calls = (engine.generate(ask([1], f"{number}-{key}", f"session-{key}")) for key in range(60))
            answers = await asyncio.gather(*calls)
            assert {answer.finish for answer in answers} == {"stop"}
            return engine.counters.retries - before

        assert await one_round(1) == 0
        dead, alive = sorted(fakes, key=lambda fake: -len(fake.requests))
        dead.stop()
        assert await one_round(2) <= 60 * 2, "one try at the router, one more while the workers are looked at"
        assert f"lists 1 workers that do not answer ({dead.url}): requests go to the 1 workers that do" in caplog.text
        assert await one_round(3) == 0, "nothing goes to the dead one any more"
        arrived = len(alive.requests)

        dead.start()
        engine._route._next_check = 0.0
        await engine.generate(ask([1], "looks"))
        if engine._route._checking is not None:
            await engine._route._checking
        assert f"the router {router.url} and its 2 workers answer: requests go through it" in caplog.text
        assert await one_round(4) == 0
        assert len(alive.requests) - arrived < 61, "the one that came back gets requests again"


async def test_a_session_stays_at_its_worker_while_the_router_is_passed_by(connect, tmp_path):
    with ExitStack() as stack:
        fakes = [stack.enter_context(FakeSGLang(default="hello")) for _ in range(3)]
        urls = [fake.url for fake in fakes]
        router = stack.enter_context(start_router(urls, policy="round_robin", log=tmp_path / "router.log"))
        engine = await connect(router.url, backoff=Backoff(first=0.25, longest=2.0))
        fakes[0].stop()
        await _until_passed_by(engine, router.url)
        for fake in fakes:
            fake.requests.clear()
        for key in range(20):
            for turn in range(3):
                await engine.generate(ask([1], f"{key}-{turn}", f"session-{key}"))
        for fake in fakes[1:]:
            sessions = [request.headers["x-smg-routing-key"].partition("~")[0] for request in fake.requests]
            assert sessions and all(sessions.count(session) == 3 for session in sessions)


async def test_without_its_router_the_workers_go_on(connect, tmp_path, caplog):
    with FakeSGLang(default="hello") as one, FakeSGLang(default="hello") as two:
        router = start_router([one.url, two.url], policy="round_robin", log=tmp_path / "router.log")
        with router:
            # Without pauses all tries are over before the workers have been looked at.
            engine = await connect(router.url, backoff=Backoff(first=0.25, longest=2.0))
            await engine.generate(ask([1], "r1"))
        sampled = await engine.generate(ask([1], "r2"))
        assert sampled.finish == "stop"
        assert f"the router {router.url} does not answer: requests go to the 2 workers" in caplog.text
        one.hold()
        two.hold()
        count = len(one.requests) + len(two.requests)
        call = asyncio.ensure_future(engine.generate(ask([1], "r3")))
        while len(one.requests) + len(two.requests) == count:
            await asyncio.sleep(0.001)
        await engine.abort("r3")
        assert (await call).finish == "abort", "aborts reach the workers too"


async def test_when_router_and_workers_are_gone_nobody_is_sent_to_ask_the_router(connect, tmp_path):
    with FakeSGLang(default="hello") as one, FakeSGLang(default="hello") as two:
        with start_router([one.url, two.url], log=tmp_path / "router.log") as router:
            engine = await connect(router.url, max_retries=2)
    with pytest.raises(EngineUnavailable, match="see whether the router still runs") as caught:
        await engine.generate(ask([1]))
    words = str(caught.value)
    assert one.url in words and two.url in words and "/workers" not in words


async def _until_passed_by(engine, router: str) -> None:
    for number in range(1000):
        await engine.generate(ask([1], f"warm-{number}"))
        if await engine._route.base("s") != router:
            return
    raise AssertionError(f"requests still go to {router}")
