"""Faults in the middle of a turn: the engine, the router, the agent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.local.engine.router import start_router
from slime_agl.testing.agents import chat_agent
from tests.conftest import flat

ANSWER = "one two three four five six"


def breaking(fake: Any, requests: int, act: Callable[[], None]) -> threading.Thread:
    """Do `act` when so many requests have arrived; the answers are held until then."""
    fake.hold()

    def work() -> None:
        fake.wait_for_requests(requests)
        act()
        fake.release()

    helper = threading.Thread(target=work)
    helper.start()
    return helper


def test_an_engine_that_is_killed_and_comes_back_costs_no_execution(fake_sglang, steps, token_exact):
    def restart() -> None:
        fake_sglang.stop()
        fake_sglang.start()

    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(chat_agent(turns=2), ["a", "b"], rollout_batch_size=2)
    helper = breaking(fake_sglang, 2, restart)
    output = run(0)
    helper.join()
    assert len(fake_sglang.requests) == 2 + 4 and [s.reward for s in flat(output.samples)] == [1.0, 1.0]
    token_exact(fake_sglang, output.samples)


def test_a_router_that_is_restarted_costs_no_execution(fake_sglang, steps, token_exact):
    pytest.importorskip("sglang_router")
    router = start_router([fake_sglang.url])
    port = int(router.url.rpartition(":")[2])
    routers = [router]

    def restart() -> None:
        routers[0].stop()
        routers.append(start_router([fake_sglang.url], port=port))

    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(chat_agent(turns=2), ["a", "b"], rollout_batch_size=2, sglang_router_port=port)
    helper = breaking(fake_sglang, 2, restart)
    try:
        output = run(0)
        helper.join()
    finally:
        for each in routers:
            each.stop()
    assert [s.reward for s in flat(output.samples)] == [1.0, 1.0]
    assert all(sample.metadata["agl"]["failure"] == "" for sample in flat(output.samples))
    token_exact(fake_sglang, output.samples)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_agents_that_hang_meet_their_deadline_and_the_run_goes_on(fake_sglang, steps, asynchronous: bool):
    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            ask = [{"role": "user", "content": task["prompt"]}]
            await ai.chat.completions.create(model="m", messages=ask)
        if task["prompt"] == "hangs":
            await asyncio.get_running_loop().create_future()
        return 1.0

    fake_sglang.answer_with(lambda request: ANSWER)
    section = {"runners": {"timeout_seconds": 1.0}, "async": {"enabled": asynchronous}}
    run = steps(agent, ["a", "hangs", "b", "c"], agl=section, rollout_batch_size=2)
    outputs = [run(number) for number in range(3)]
    assert all(sample.prompt != "hangs" for output in outputs for sample in flat(output.samples))
    assert sum(output.metrics.get("rollout/agl/failed/deadline", 0) for output in outputs) >= 1
    assert sum(output.metrics.get("rollout/agl/dropped_groups/failed", 0) for output in outputs) >= 1
    assert fake_sglang.in_flight == 0


def test_a_request_that_nobody_of_ours_holds_is_ended_with_the_step(fake_sglang, steps):
    """Such as one whose client gave up: the engine must be idle before it can be offloaded."""
    stray = threading.Thread(target=lambda: post(fake_sglang.url))

    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        await fake_sglang.requests_arrived(1)
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        return 1.0

    fake_sglang.answer_with(lambda request: ANSWER).hold()
    stray.start()
    fake_sglang.wait_for_requests(1)
    fake_sglang.release(1)
    stray.join()
    late = threading.Thread(target=lambda: post(fake_sglang.url))

    def answer_ours_only() -> None:
        fake_sglang.wait_for_requests(2)
        late.start()
        fake_sglang.wait_for_requests(3)
        fake_sglang.release(1)

    helper = threading.Thread(target=answer_ours_only)
    helper.start()
    steps(agent, ["a"])(0)
    helper.join()
    assert fake_sglang.in_flight == 0
    late.join()


def post(url: str) -> None:
    import httpx

    httpx.post(f"{url}/generate", json={"input_ids": [1, 2], "sampling_params": {}}, timeout=30)
