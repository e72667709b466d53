"""Executions of one kind of agent, in a process of its own that is driven over stdin.

    python -m bench.execution MODE ENGINE MATERIAL

A command is a JSON object: {"work", "turns", "executions"}. Works: `generate`, a step of slime's; `gateway`, the same
agents at a gateway whose sessions are opened and sealed; `agent`, the agents at the engine itself, which answers with
canned completions. The answer has CPU milliseconds per execution, by thread (see `bench.clocks`), 'rest' for all other
threads, and wall seconds. `history`, with "turns", answers with the CPU milliseconds of each turn of one long
conversation, in the gateway's threads and in an empty proxy's that moves as many bytes. "profile" adds the rows of a
sampling profile of the thread that it names; "functions" makes them finer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("TQDM_DISABLE", "1")

from bench.chat import Chat, head
from bench.clocks import Profile, cpu, thread_seconds
from bench.load import Connection
from bench.pinned import pin
from bench.subject import Empty, Ours
from slime_agl import garbage
from slime_agl.lightning.exits import SharedLoop
from slime_agl.loops import LoopThread
from slime_agl.rollout import generate, shutdown
from slime_agl.testing import ListDataSource, make_args

AT_ONCE, GROUP = 32, 8
NUMBERS = itertools.count()


class Works:
    """A case to measure. mode: 'async' or 'thread'."""

    def __init__(self, mode: str, engine: str, material: Path) -> None:
        from bench import agents  # reads the material that the environment names

        self._agents, self._threaded, self._engine = agents, mode == "thread", engine
        model = json.loads(material.read_text())["model"]
        agent = "bench.agents.blocking" if self._threaded else "bench.agents.waiting"
        section = {"agent": agent, "runners": {"max_concurrency": AT_ONCE}}
        self._args = make_args(engine, model, n_samples_per_prompt=GROUP, rollout_max_response_len=512, agl=section)
        self._gateway, self._proxy = Ours(engine, model), Empty(engine, model)
        self._loop = LoopThread("bench-agents", SharedLoop())
        self._loop.start()
        self._pool = ThreadPoolExecutor(AT_ONCE)
        garbage.relax()  # as the runtime does, also before it runs

    def generate(self, turns: int, executions: int) -> None:
        groups = executions // GROUP
        self._args.rollout_batch_size = self._args.over_sampling_batch_size = groups
        output = generate(self._args, next(NUMBERS), ListDataSource([f"{turns} turns"], GROUP))
        assert len(output.samples) == groups

    def gateway(self, turns: int, executions: int) -> None:
        name = f"gateway-{next(NUMBERS)}"
        self._gateway.open(name, executions)
        self._talk([f"{self._gateway.url}/rollout/{name}/attempt/{at}/v1" for at in range(executions)], turns)
        self._gateway.close(name)

    def agent(self, turns: int, executions: int) -> None:
        self._talk([f"{self._engine}/v1"] * executions, turns)

    def history(self, turns: int) -> dict[str, list[float]]:
        """CPU milliseconds for each turn of one conversation with the gateway, and with an empty proxy."""
        name = f"history-{next(NUMBERS)}"
        path = f"/rollout/{name}/attempt/0/v1/chat/completions"
        self._gateway.open(name, 1)
        spent = {
            "each": self._loop.run(self._long(self._gateway.url, path, turns, "agl-")),
            "empty": self._loop.run(self._long(self._proxy.url, path, turns, "bench-server")),
        }
        self._gateway.close(name)
        return spent

    async def _long(self, url: str, path: str, turns: int, threads: str) -> list[float]:
        host, port = url.removeprefix("http://").split(":")
        first, chat = head(path), Chat(self._agents.SCRIPT)
        _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
        watched = [thread for thread in threading.enumerate() if thread.name.startswith(threads)]
        spent, before = [], sum(map(thread_seconds, watched))
        for _ in range(turns):
            status, raw = await connection.post(first, chat.body())
            assert status == 200, raw
            chat.take(raw)
            now = sum(map(thread_seconds, watched))
            spent.append(1000 * (now - before))
            before = now
        connection.close()
        return spent

    def _talk(self, bases: list[str], turns: int) -> None:
        waiting = iter(bases)
        if self._threaded:

            def line() -> None:
                for base in waiting:
                    self._agents.converse_blocking(base, "dummy", turns)

            for done in [self._pool.submit(line) for _ in range(AT_ONCE)]:
                done.result()
        else:
            self._loop.run(self._lines(waiting, turns))

    async def _lines(self, waiting: Any, turns: int) -> None:
        async def line() -> None:
            for base in waiting:
                await self._agents.converse(base, "dummy", turns)

        await asyncio.gather(*(line() for _ in range(AT_ONCE)))


def measured(work: Callable[[int, int], None], turns: int, executions: int) -> dict[str, float]:
    wall, before = time.perf_counter(), cpu()
    work(turns, executions)
    spent = cpu()
    spent.subtract(before)
    spent["rest"] = 2 * spent["all"] - spent.total()
    return {name: 1000 * value / executions for name, value in spent.items()} | {"wall": time.perf_counter() - wall}


def main(mode: str, engine: str, material: str) -> None:
    logging.basicConfig(level=logging.ERROR)
    pin(last=False)
    works = Works(mode, engine, Path(material))
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_done(works, **json.loads(line))), flush=True)
    shutdown()


def _done(works: Works, work: str, turns: int, executions: int = 1, profile: str = "", functions: bool = False) -> Any:
    with Profile(profile, functions=functions) if profile else nullcontext() as samples:
        if work == "history":
            found: dict[str, Any] = works.history(turns)
        else:
            found = measured(getattr(works, work), turns, executions)
    return found if samples is None else found | {"rows": samples.rows(60)}


if __name__ == "__main__":
    main(*sys.argv[1:])
