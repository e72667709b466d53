"""A gateway under measurement, in a separate process pinned to one core and driven over stdin.

Commands are one JSON object per line, each answered with one: {"open": name, "count": n}, {"close": name},
{"cpu": true} with the process's CPU seconds, {"resident": true} with its memory in bytes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import uvloop
from aiohttp import web

from bench.pinned import pin
from slime_agl import garbage
from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.audit import audit
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.encoder import fast_encoder
from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import GatewayConfig
from slime_agl.engine.router import RouterEngine
from slime_agl.gateway.http.server import Gateway, GatewayParts
from slime_agl.gateway.sessions.session import SessionSpec
from slime_agl.loops import LoopThread
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Turn

ROUTE = "/rollout/{rollout}/attempt/{attempt}/v1/chat/completions"


class Subject(Protocol):
    url: str

    def open(self, name: str, count: int) -> None: ...

    def close(self, name: str) -> None: ...


class Ours:
    """This project's gateway, with a sink that discards."""

    def __init__(self, engine: str, model: str) -> None:
        tokenizer = load_tokenizer(model)
        renderer = Renderer(tokenizer, encoder=fast_encoder(tokenizer))
        parts = GatewayParts(
            engine=RouterEngine(engine),
            renderer=renderer,
            delta=DeltaEncoder(renderer, audit(renderer)),
            parser=ReplyParser(renderer),
            sink=self,
            model="policy",
            policy="trainer",
        )
        self._gateway = Gateway(GatewayConfig(), parts)
        self._gateway.start()
        self._opened: dict[str, int] = {}
        self.url = self._gateway.url

    def turn_committed(self, rollout_id: str, attempt_id: str, turn: Turn, ledger: Ledger) -> None:
        """No spans: they belong to the agents' process."""

    def rewarded(self, rollout_id: str, attempt_id: str, value: float) -> None:
        """No rewards: nobody trains."""

    def open(self, name: str, count: int) -> None:
        async def all_of_them() -> None:
            for number in range(count):
                await self._gateway.open(
                    SessionSpec(
                        rollout_id=name,
                        attempt_id=str(number),
                        session_key=f"{name}-{number}",
                        sampling={"temperature": 1.0},
                        response_limit=512,
                    )
                )

        asyncio.run(all_of_them())
        self._opened[name] = count

    def close(self, name: str) -> None:
        async def all_of_them() -> None:
            for number in range(self._opened.pop(name)):
                await self._gateway.seal(name, str(number))

        asyncio.run(all_of_them())


class Served:
    """A bare aiohttp server with one handler, on a uvloop thread like ours."""

    def __init__(self, make: Callable[[aiohttp.ClientSession], Callable[[web.Request], Awaitable[Any]]]) -> None:
        self._thread = LoopThread("bench-server", uvloop.new_event_loop())
        self._thread.start()
        self.url = self._thread.run(self._start(make))

    async def _start(self, make: Callable[..., Any]) -> str:
        client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post(ROUTE, make(client))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    def open(self, name: str, count: int) -> None:
        """No-op: sessions start with their first request."""

    def close(self, name: str) -> None:
        """No-op: nothing is kept."""


class Empty(Served):
    """Forwards the body to the engine and the answer back: the cost of HTTP alone."""

    def __init__(self, engine: str, model: str) -> None:
        def make(client: aiohttp.ClientSession) -> Callable[[web.Request], Awaitable[web.Response]]:
            async def handle(request: web.Request) -> web.Response:
                async with client.post(f"{engine}/generate", data=await request.read()) as response:
                    return web.Response(body=await response.read(), content_type="application/json")

            return handle

        super().__init__(make)


class Peer(Served):
    """Renders and encodes the whole chat at every turn (see `rerender`)."""

    def __init__(self, engine: str, model: str) -> None:
        from bench.rerender import Rerender

        def make(client: aiohttp.ClientSession) -> Callable[[web.Request], Awaitable[web.Response]]:
            self._peer = Rerender(client, engine, model)
            return self._peer.chat

        super().__init__(make)

    def close(self, name: str) -> None:
        self._peer.turns.clear()


SUBJECTS: dict[str, Callable[[str, str], Subject]] = {"ours": Ours, "empty": Empty, "rerender": Peer}


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(kind: str, engine: str, material: str) -> None:
    pin(last=False)
    subject = SUBJECTS[kind](engine, json.loads(Path(material).read_text())["model"])
    garbage.relax()  # as the runtime does, for every subject
    print(json.dumps({"url": subject.url}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "open" in command:
            subject.open(command["open"], command["count"])
        elif "close" in command:
            subject.close(command["close"])
        answer = resident() if "resident" in command else time.process_time()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
