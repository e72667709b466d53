"""The gateway in its own thread with its own event loop, so that a blocking agent cannot stall it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

from aiohttp import web

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import GatewayConfig
from slime_agl.engine.base import Engine, EngineInfo
from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.gateway.door import Door, is_loopback
from slime_agl.gateway.http.app import build_app
from slime_agl.gateway.http.connections import Connection, watch
from slime_agl.gateway.sessions.registry import Sessions
from slime_agl.gateway.sessions.session import SealedSession, SessionSpec
from slime_agl.gateway.turn.commits import Committer, TurnSink
from slime_agl.gateway.turn.maker import TurnMaker
from slime_agl.gateway.turn.prompts import PromptMaker
from slime_agl.gateway.turn.sampling import Sampler
from slime_agl.loops import LoopThread


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What a gateway is made of. `policy`: whose sampling parameters count, 'trainer' or 'agent'."""

    engine: Engine
    renderer: Renderer
    delta: DeltaEncoder
    parser: ReplyParser
    sink: TurnSink
    model: str
    policy: Literal["trainer", "agent"]


class Gateway:
    """One gateway. `start` and `stop` may be called from any thread; the coroutines from any event loop."""

    def __init__(self, config: GatewayConfig, parts: GatewayParts) -> None:
        self._config, self._parts = config, parts
        self._loop: LoopThread | None = None
        self._stack = AsyncExitStack()
        self._sessions: Sessions | None = None
        self._server: web.Server | None = None
        self.url = ""
        self.engine_info = EngineInfo()

    def start(self) -> None:
        """Bind and serve.

        Raises:
            ConfigError: the address is taken or not this machine's.
            EngineUnavailable: no engine answers.
        """
        self._loop = LoopThread("agl-gateway", _new_loop())
        self._loop.start()
        try:
            self._submit(self._start).result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Seal what is open, close the engine client and the sockets. May be called again."""
        if self._loop is None:
            return
        if self._loop.alive:
            self._submit(self._stack.aclose).result()
        self._loop.stop()
        self._loop = None

    async def open(self, spec: SessionSpec) -> str:
        """Let an attempt in; returns its key."""
        return await self._call(lambda: _later(self._sessions.open(spec)))

    async def seal(self, rollout_id: str, attempt_id: str) -> SealedSession:
        """End an attempt and take its ledger; returns when nothing of it is in flight at the engine."""
        return await self._call(lambda: self._sessions.seal(rollout_id, attempt_id))

    async def hold(self, lane: str) -> None:
        """Let no turn of a lane be at the engine; returns when none is."""
        await self._call(lambda: self._sessions.hold(lane))

    async def release(self, lane: str) -> None:
        """Let the turns of a lane go on from where they were held."""
        await self._call(lambda: _later(self._sessions.release(lane)))

    async def weight_version(self) -> str:
        """Version of the weights that the engine samples with now, '' when it does not say."""
        return (await self._call(self._parts.engine.info)).weight_version

    async def quiet(self) -> None:
        """End whatever the engine still works on; returns when it is idle."""
        await self._call(self._parts.engine.quiet)

    async def counters(self) -> Counter[str]:
        return await self._call(lambda: _later(Counter(self._sessions.counters)))

    async def in_flight(self) -> int:
        return await self._call(lambda: _later(self._sessions.in_flight))

    async def _call(self, make: Callable[[], Awaitable[Any]]) -> Any:
        return await asyncio.wrap_future(self._submit(make))

    def _submit(self, make: Callable[[], Awaitable[Any]]) -> Any:
        if self._loop is None:
            raise SlimeAglError("the gateway is not running")

        async def run() -> Any:
            return await make()

        return self._loop.submit(run())

    async def _start(self) -> None:
        config, parts = self._config, self._parts
        self._stack.push_async_callback(parts.engine.close)
        await parts.engine.start()
        self.engine_info = await parts.engine.info()
        sampler = Sampler(
            parts.engine,
            policy=parts.policy,
            context_limit=self.engine_info.context_length,
            decode=parts.renderer.decode,
        )
        committer = Committer(parts.renderer, parts.parser, parts.sink)
        maker = TurnMaker(PromptMaker(parts.renderer, parts.delta), sampler, committer)
        self._stack.callback(maker.close)
        self._sessions = Sessions(maker, parts.engine, keys_required=_keys_required(config))
        app = build_app(self._sessions, parts.renderer, parts.model, Door(config.host, config.public_url))
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        self._stack.push_async_callback(self._sessions.close)
        loop, counters = asyncio.get_running_loop(), self._sessions.counters
        server = self._server = runner.server
        try:
            listening = await loop.create_server(
                partial(Connection, server, counters, loop), config.host, config.port, backlog=2048
            )
        except OSError as error:
            raise ConfigError(
                f"the gateway cannot bind {config.host}:{config.port} ({error.strerror or error}); "
                "set agl.gateway.port to a free port, or to 0 to take any"
            ) from error
        self._stack.callback(listening.close)
        watching = asyncio.ensure_future(watch(server))
        self._stack.callback(watching.cancel)
        port = listening.sockets[0].getsockname()[1]
        self.url = (config.public_url or f"http://{_in_url(config.host)}:{port}").rstrip("/")


def _keys_required(config: GatewayConfig) -> bool:
    """Whether placeholders are refused: asked for, or other machines reach the gateway."""
    public = urlsplit(config.public_url).hostname if config.public_url else None
    return config.auth == "required" or not all(is_loopback(host) for host in (config.host, public) if host)


async def _later(value: Any) -> Any:
    return value


def _in_url(host: str) -> str:
    """The host as agents on this machine reach it: an address that means 'all' is not one to connect to."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
