"""Behind the real sglang-router."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import aiohttp
import pytest

from slime_agl.errors import EngineUnavailable
from slime_agl.local.engine.router import start_router
from slime_agl.local.engine.scripted import ScriptedBackend, ScriptedReply
from slime_agl.local.engine.server import EngineThread

pytest.importorskip("sglang_router")


@pytest.fixture(scope="module")
def routed():
    """Two scripted engines behind one router; prompts that begin with 99 are held."""
    backends = [
        ScriptedBackend(lambda request: ScriptedReply((7, 8), hold=request.input_ids[0] == 99)) for _ in range(2)
    ]
    with EngineThread(backends[0]) as first, EngineThread(backends[1]) as second:
        with start_router([first.url, second.url]) as router:
            yield router, backends, [first.url, second.url]


async def generate(url: str, **body: object) -> tuple[int, dict]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/generate", json=body) as response:
        return response.status, await response.json()


def test_the_router_lists_its_workers(routed):
    router, _, urls = routed
    assert sorted(worker["url"] for worker in router.workers()) == sorted(urls)


async def test_what_slime_asks_for_arrives_and_comes_back(routed):
    router, backends, _ = routed
    params = {
        "temperature": 0.8,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 9,
        "stop": ["END"],
        "stop_token_ids": [2],
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
        "sampling_seed": 4,
    }
    status, answer = await generate(
        router.url, input_ids=[5, 6], rid="one", return_logprob=True, sampling_params=params
    )
    assert (status, answer["output_ids"], answer["meta_info"]["id"]) == (200, [7, 8], "one")
    (request,) = [e.request for b in backends for e in b.exchanges if e.request.rid == "one"]
    assert (request.sampling.sampling_seed, request.sampling.stop) == (4, ("END",))
    assert (request.sampling.no_stop_trim, request.return_logprob) == (True, True)


async def test_a_refusal_passes_through(routed):
    router, _, _ = routed
    status, answer = await generate(router.url, input_ids=[1] * 40_000)
    assert status == 400
    assert "The input (40000 tokens) is longer" in answer["error"]["message"]


async def test_a_client_that_leaves_the_router_ends_its_request(routed):
    router, backends, _ = routed
    asked = asyncio.create_task(generate(router.url, input_ids=[99], rid="left"))
    while not any(backend.load().running for backend in backends):
        await asyncio.sleep(0)
    asked.cancel()
    (backend,) = [b for b in backends if any(e.request.rid == "left" for e in b.exchanges)]
    await asyncio.to_thread(backend.wait_until_answered, len(backend.exchanges))
    assert backend.exchanges[-1].answer.finish.kind == "abort"


def test_a_router_that_cannot_start_shows_its_log(tmp_path):
    with pytest.raises(EngineUnavailable, match=r"(?s)exited with code 2.*invalid choice: 'nope'"):
        start_router(["http://127.0.0.1:9"], policy="nope", log=tmp_path / "router.log")


def test_stopping_twice_is_fine_and_a_stopped_router_says_so(routed):
    _, _, urls = routed
    router = start_router(urls)
    router.stop()
    router.stop()
    assert not router.running
    with pytest.raises(EngineUnavailable, match="does not answer"):
        router.workers()


def test_the_router_ends_when_its_parent_is_killed(routed):
    _, _, urls = routed
    program = (
        "import os, signal, sys\n"
        "from slime_agl.local.engine.router import start_router\n"
        f"router = start_router({urls!r})\n"
        "print(router.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    deadline = time.monotonic() + 10
    while _group_exists(int(parent.stdout)):
        assert time.monotonic() < deadline, "the router outlives its parent"


def _group_exists(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True
