"""Compare HTTP clients for the engine side: CPU of one post and its answer, in interleaved rounds.

Ours (slime_agl.engine.connections), aiohttp's and httpx's post the same body, 64 at once, to the same instant engine
in a separate process. Only this process's CPU counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import httpx
import uvloop

from bench.frame import Process
from bench.pinned import pin
from slime_agl.engine.connections import Connections

AT_ONCE = 64
Post = Callable[[], Awaitable[bytes]]


def request_body(tokens: int) -> bytes:
    ids = [1000 + at % 5000 for at in range(tokens)]
    return json.dumps({"input_ids": ids, "sampling_params": {"max_new_tokens": 64}, "return_logprob": True}).encode()


async def clients(url: str, body: bytes, stack: AsyncExitStack) -> dict[str, Post]:
    """Yield a function per client that posts the body once and returns the answer's body."""
    address, kind = f"{url}/generate", {"Content-Type": "application/json"}
    own = Connections()
    stack.push_async_callback(own.close)
    general = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=AT_ONCE)
    modern = await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=60))

    async def ours() -> bytes:
        return await own.post(address, [body], read=lambda answer: answer.body)

    async def by_aiohttp() -> bytes:
        async with general.post(address, data=body, headers=kind) as answer:
            return await answer.read()

    async def by_httpx() -> bytes:
        return (await modern.post(address, content=body, headers=kind)).content

    return {"ours": ours, "aiohttp": by_aiohttp, "httpx": by_httpx}


async def microseconds(post: Post, posts: int) -> float:
    """Measure CPU microseconds per post."""

    async def line() -> None:
        for _ in range(posts // AT_ONCE):
            await post()

    before = time.process_time()
    await asyncio.gather(*(line() for _ in range(AT_ONCE)))
    return 1e6 * (time.process_time() - before) / (posts // AT_ONCE * AT_ONCE)


async def measure(url: str, body: bytes, posts: int, rounds: int) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        posting = await clients(url, body, stack)
        taken: dict[str, list[float]] = {name: [] for name in posting}
        for number in range(rounds + 1):
            for name, post in posting.items():
                found = await microseconds(post, AT_ONCE if number == 0 else posts)
                if number:
                    taken[name].append(found)
    return {name: statistics.median(found) for name, found in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench/clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--posts", type=int, default=6400, help="per client and round")
    parser.add_argument("--tokens", type=int, default=2000, help="of the prompt")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        material = Path(folder) / "material.json"
        material.write_text(json.dumps({"answers": [list(range(100, 130))]}))
        engine = Process("bench.engine", str(material))
        try:
            pin(last=False)
            body = request_body(options.tokens)
            figures = uvloop.run(measure(engine.hello["url"], body, options.posts, options.rounds))
        finally:
            engine.stop()
    for name, value in figures.items():
        print(f"{name:8} {value:7.1f} us of CPU per post  ({value / figures['ours']:.2f} x ours)")


if __name__ == "__main__":
    main()
