"""Measure the cost of many live sessions: memory, file descriptors and threads before, at the peak and after.

The engine runs in a separate process; gateway and clients share one. All sessions live at once: the last turn of each
waits at the gateway until all others have got there.

    scripts/bench/gateway sessions [--count 1024] [--turns 4] [--client raw|shared|openai] [--where]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import json
import os
import tempfile
import threading
import time
import tracemalloc
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.frame import Process
from bench.load import Connection
from bench.material import write_material
from bench.subject import Ours, resident

LETTERS = 3000
SETTLE_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Taken:
    """The process's current resources. memory: bytes."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Taken:
        return cls(resident(), len(os.listdir("/proc/self/fd")), threading.active_count())


class Raw:
    """A minimal agent: one connection, hand-made bodies."""

    def __init__(self, url: str, path: str) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._head = (
            f"POST {path}/chat/completions HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer dummy\r\n"
            "Content-Type: application/json\r\n"
        ).encode()
        self._connection: Connection | None = None

    async def say(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        if self._connection is None:
            loop = asyncio.get_running_loop()
            self._connection = (await loop.create_connection(Connection, self._host, int(self._port)))[1]
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        status, answer = await self._connection.post(self._head, body)
        assert status == 200, answer
        return json.loads(answer)["choices"][0]["message"]

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class OpenAI:
    """An agent with OpenAI's client. http: a shared HTTP client, None for its own."""

    def __init__(self, url: str, path: str, http: Any = None) -> None:
        import openai

        self._client = openai.AsyncOpenAI(base_url=url + path, api_key="dummy", http_client=http, timeout=600)
        self._own = http is None

    async def say(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        answer = await self._client.chat.completions.create(model="policy", messages=messages)
        return answer.choices[0].message.model_dump(exclude_none=True)

    async def close(self) -> None:
        if self._own:
            await self._client.close()


async def _session(agent: Any, number: int, turns: int, ready: asyncio.Barrier, measured: asyncio.Event) -> None:
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        if turn == turns - 1:
            await ready.wait()
        text = (f"session {number}, turn {turn}: what comes next? " * 80)[:LETTERS]
        messages.append({"role": "user", "content": text})
        messages.append(await agent.say(messages))
    await measured.wait()
    await agent.close()


async def _live(subject: Ours, count: int, turns: int, client: str) -> Taken:
    http = None
    if client == "shared":
        import httpx

        http = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=600)
    ready, measured, peak = asyncio.Barrier(count + 1), asyncio.Event(), 0
    make = Raw if client == "raw" else OpenAI
    more = () if client == "raw" else (http,)
    agents = [make(subject.url, f"/rollout/sessions/attempt/{at}/v1", *more) for at in range(count)]
    lives = [asyncio.ensure_future(_session(agent, at, turns, ready, measured)) for at, agent in enumerate(agents)]
    await ready.wait()
    while await subject.in_flight():
        peak = max(peak, resident())
        await asyncio.sleep(0.05)
    taken = Taken.now()
    measured.set()
    await asyncio.gather(*lives)
    if http is not None:
        await http.aclose()
    return Taken(max(peak, taken.memory), taken.descriptors, taken.threads)


def _settled(idle: Taken) -> Taken:
    """Measure once idle connections to the engine have expired."""
    for _ in range(SETTLE_SECONDS):
        gc.collect()
        end = Taken.now()
        if end.descriptors <= idle.descriptors:
            break
        time.sleep(1)
    return end


class Measured(Ours):
    async def in_flight(self) -> int:
        return await self._gateway.in_flight()

    def stop(self) -> None:
        self._gateway.stop()


def _where(before: tracemalloc.Snapshot) -> None:
    for line in tracemalloc.take_snapshot().compare_to(before, "lineno")[:30]:
        print(f"{line.size_diff / 2**20:8.2f} MiB {line.count_diff:8d} {line.traceback}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench/gateway sessions", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1024, help="sessions that live at once")
    parser.add_argument("--turns", type=int, default=4, help="turns of each")
    parser.add_argument(
        "--client",
        choices=["raw", "shared", "openai"],
        default="raw",
        help="agents' client: bare HTTP, OpenAI's over one pool, or OpenAI's with a pool each",
    )
    parser.add_argument("--where", action="store_true", help="print the lines that hold most memory (slow)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="slime-agl-bench-") as folder, ExitStack() as stack:
        material = write_material(Path(folder), [argparse, inspect], small=True)
        engine = Process("bench.engine", str(material))
        stack.callback(engine.stop)
        subject = Measured(engine.hello["url"], json.loads(material.read_text())["model"])
        stack.callback(subject.stop)
        # Created once, by the first session.
        subject.open("warm", 2)
        asyncio.run(_warm(subject, options.client))
        subject.close("warm")
        idle = Taken.now()
        if options.where:
            tracemalloc.start()
            before = tracemalloc.take_snapshot()
        subject.open("sessions", options.count)
        peak = asyncio.run(_live(subject, options.count, options.turns, options.client))
        if options.where:
            _where(before)
        subject.close("sessions")
        end = _settled(idle)
    print(f"{options.count} sessions of {options.turns} turns, client {options.client}")
    print(f"{'':12}{'idle':>10}{'peak':>10}{'end':>10}{'above idle':>12}")
    for name, form, scale in (("memory", ".0f", 2**20), ("descriptors", "d", 1), ("threads", "d", 1)):
        a, b, c = (getattr(taken, name) for taken in (idle, peak, end))
        cells = [format(value / scale if scale > 1 else value, form) for value in (a, b, c, b - a)]
        print(f"{name:12}{cells[0]:>10}{cells[1]:>10}{cells[2]:>10}{cells[3]:>12}{' MiB' if scale > 1 else ''}")


async def _warm(subject: Measured, client: str) -> None:
    # Concurrent and long enough to start both encoder threads, which are created once.
    await asyncio.gather(*(_warm_one(subject, client, number) for number in range(2)))


async def _warm_one(subject: Measured, client: str, attempt: int) -> None:
    agent = (Raw if client == "raw" else OpenAI)(subject.url, f"/rollout/warm/attempt/{attempt}/v1")
    for number in range(4):
        await agent.say([{"role": "user", "content": f"{number} and so on " * 500}])
    await agent.close()
