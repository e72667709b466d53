"""The engine client behind the real sgl-router, set as slime sets it: no health checks, no circuit breaker."""

from __future__ import annotations

import asyncio

import pytest
from engine_helpers import ask

from slime_agl.local.router import start_router
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
