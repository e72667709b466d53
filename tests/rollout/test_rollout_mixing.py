"""A model call from one execution to another's address is refused, and never trains."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import aiohttp
import anthropic
import httpx
import openai
import pytest
import requests

from tests.conftest import flat

MESSAGES = [{"role": "user", "content": "x"}]
BODY = {"model": "m", "messages": MESSAGES, "max_tokens": 16}
SHARED: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def engine(fake_sglang: Any) -> None:
    SHARED.clear()
    fake_sglang.answer_with(lambda request: "said")


async def by_openai(endpoint: str) -> None:
    async with openai.AsyncOpenAI(base_url=endpoint, api_key="none", max_retries=0) as ai:
        await ai.chat.completions.create(model="m", messages=MESSAGES)


async def by_anthropic(endpoint: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=endpoint, api_key="none", max_retries=0) as ai:
        await ai.messages.create(model="m", messages=MESSAGES, max_tokens=16)


async def by_aiohttp(endpoint: str) -> None:
    async with aiohttp.ClientSession() as ai, ai.post(f"{endpoint}/chat/completions", json=BODY) as answer:
        answer.raise_for_status()


async def by_one_pool(endpoint: str) -> None:
    """All executions send on the kept connections of one client, each to its own address."""
    if "pool" not in SHARED:
        SHARED["pool"], SHARED["users"] = httpx.AsyncClient(), 0
    pool = SHARED["pool"]
    SHARED["users"] += 1
    try:
        (await pool.post(f"{endpoint}/chat/completions", json=BODY)).raise_for_status()
    finally:
        SHARED["users"] -= 1
        if not SHARED["users"]:
            await SHARED.pop("pool").aclose()


async def by_requests_in_a_thread(endpoint: str) -> None:
    (await asyncio.to_thread(requests.post, f"{endpoint}/chat/completions", json=BODY)).raise_for_status()


ASYNC = [by_openai, by_anthropic, by_aiohttp, by_one_pool, by_requests_in_a_thread]


def mixed(output: Any) -> int:
    return int(output.metrics.get("rollout/agl/mixed_calls", 0))


def shares_the_endpoint(call: Any) -> Any:
    """Two executions call the model at the endpoint that the second one wrote down, the one that it is not first."""

    async def agent(task: Any, llm: Any) -> float:
        met = SHARED.setdefault("met", asyncio.Barrier(2))
        tried = SHARED.setdefault("tried", asyncio.Event())
        await met.wait()
        SHARED["endpoint"] = llm.endpoint
        await met.wait()
        if SHARED["endpoint"] == llm.endpoint:
            await tried.wait()
        try:
            await call(SHARED["endpoint"])
        finally:
            tried.set()
        return 1.0

    return agent


@pytest.mark.parametrize("call", ASYNC, ids=lambda call: call.__name__)
def test_a_call_to_another_executions_address_is_refused_and_names_the_fix(run_rollout, token_exact, fake_sglang, call):
    output = run_rollout(shares_the_endpoint(call), ["a"], n_samples=2, rollout_batch_size=1)
    good, bad = sorted(flat(output.samples), key=lambda sample: sample.remove_sample)
    assert (good.metadata["agl"]["failure"], bad.metadata["agl"]["failure"]) == ("", "agent_error")
    assert len(fake_sglang.requests) == 1, "the refused call was not sampled"
    assert mixed(output) >= 1 and sum(bad.loss_mask) == 0
    token_exact(fake_sglang, output.samples)


@pytest.mark.parametrize("call", ASYNC, ids=lambda call: call.__name__)
def test_calls_to_an_executions_own_address_are_never_refused(run_rollout, call):
    async def agent(task: Any, llm: Any) -> float:
        for _ in range(2):
            await call(llm.endpoint)
            await asyncio.create_task(call(llm.endpoint))
        return 1.0

    output = run_rollout(agent, ["a", "b"], n_samples=2)
    assert mixed(output) == 0 and {sample.metadata["agl"]["failure"] for sample in flat(output.samples)} == {""}


def by_openai_sync(endpoint: str) -> None:
    with openai.OpenAI(base_url=endpoint, api_key="none", max_retries=0) as ai:
        ai.chat.completions.create(model="m", messages=MESSAGES)


def by_httpx_sync(endpoint: str) -> None:
    httpx.post(f"{endpoint}/chat/completions", json=BODY, timeout=None).raise_for_status()


def by_requests(endpoint: str) -> None:
    requests.post(f"{endpoint}/chat/completions", json=BODY).raise_for_status()


@pytest.mark.parametrize("call", [by_openai_sync, by_httpx_sync, by_requests], ids=lambda call: call.__name__)
def test_blocking_agents_are_kept_apart_too(run_rollout, fake_sglang, call):
    met, tried = threading.Barrier(2), threading.Event()
    returned: list[bool] = []

    def agent(task: Any, llm: Any) -> float:
        met.wait(30)
        SHARED["endpoint"] = llm.endpoint
        met.wait(30)
        if SHARED["endpoint"] == llm.endpoint:
            returned.append(tried.wait(20))
        try:
            call(SHARED["endpoint"])
        finally:
            tried.set()
        return 1.0

    output = run_rollout(agent, ["a"], n_samples=2)
    assert sorted(sample.metadata["agl"]["failure"] for sample in flat(output.samples)) == ["", "agent_error"]
    assert mixed(output) >= 1 and len(fake_sglang.requests) == 1
    assert returned == [True]  # its client did not wait for an answer to what was never sent


def test_an_agent_that_swallows_the_refusal_fails_nevertheless(run_rollout):
    async def swallowing(endpoint: str) -> None:
        try:
            await by_openai(endpoint)
        except openai.APIError:
            return

    output = run_rollout(shares_the_endpoint(swallowing), ["a"], n_samples=2)
    assert sorted(sample.metadata["agl"]["failure"] for sample in flat(output.samples)) == ["", "agent_error"]


def test_a_helper_that_the_first_execution_started_may_serve_others_after_its_end(run_rollout):
    """A task's context is that of who started it: a shared dispatcher is not the first execution's own code."""

    async def dispatch(queue: Any) -> None:
        while True:
            endpoint, answered = await queue.get()
            await by_openai(endpoint)
            answered.set_result(None)

    async def agent(task: Any, llm: Any) -> float:
        if "queue" not in SHARED:
            SHARED["queue"] = asyncio.Queue()
            SHARED["helper"] = asyncio.create_task(dispatch(SHARED["queue"]))
        answered = asyncio.get_running_loop().create_future()
        SHARED["queue"].put_nowait((llm.endpoint, answered))
        await answered
        return 1.0

    output = run_rollout(agent, list("abc"), agl={"runners": {"max_concurrency": 1, "end_leftovers": False}})
    assert mixed(output) == 0 and {sample.metadata["agl"]["failure"] for sample in flat(output.samples)} == {""}
