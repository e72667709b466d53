"""The gateway: a server in its own thread with its own event loop, so that a blocking agent cannot stall it."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import GatewayConfig
from slime_agl.engine.base import Engine, EngineInfo, Pressure
from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.gateway.door import Door, is_loopback
from slime_agl.gateway.http.app import build_surface
from slime_agl.gateway.http.listener import Listener
from slime_agl.gateway.http.sockets import Sockets
from slime_agl.gateway.sessions.doorman import Doorman
from slime_agl.gateway.sessions.registry import Sessions
from slime_agl.gateway.sessions.session import SealedSession, SessionSpec
from slime_agl.gateway.turn.commits import HELD, REUSED, Committer, TurnSink
from slime_agl.gateway.turn.maker import TurnMaker
from slime_agl.gateway.turn.prompts import PromptMaker
from slime_agl.gateway.turn.sampling import Sampler
from slime_agl.gateway.turn.selection import Selection
from slime_agl.loops import LoopThread

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """Components of a gateway. policy: whose sampling parameters apply, 'trainer' or 'agent'.

    selection: which turns train; all of them by default. doorman: see Sessions.
    """

    engine: Engine
    renderer: Renderer
    delta: DeltaEncoder
    parser: ReplyParser
    sink: TurnSink
    model: str
    policy: Literal["trainer", "agent"]
    selection: Selection | None = None
    doorman: Doorman | None = None


class Gateway:
    """One gateway. Call `start` and `stop` from any thread, the coroutines from any event loop."""

    def __init__(self, config: GatewayConfig, parts: GatewayParts) -> None:
        self._config, self._parts = config, parts
        self._loop: LoopThread | None = None
        self._stack = AsyncExitStack()
        self._sessions: Sessions | None = None
        self._listener: Listener | None = None
        self._sockets: Sockets | None = None
        self.url = ""
        self.engine_info = EngineInfo()

    def start(self) -> None:
        """Bind and serve.

        Raises:
            ConfigError: the address is taken, or belongs to another machine.
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
        """Seal open attempts, then close the engine client and the sockets. Idempotent."""
        if self._loop is None:
            return
        if self._loop.alive:
            self._submit(self._stack.aclose).result()
        self._loop.stop()
        self._loop = None

    async def open(self, spec: SessionSpec) -> str:
        """Admit an attempt; return its key."""
        return await self._call(lambda sessions: _later(sessions.open(spec)))

    async def seal(self, rollout_id: str, attempt_id: str) -> SealedSession:
        """End an attempt and return its ledger, once none of its requests is in flight at the engine."""
        return await self._call(lambda sessions: sessions.seal(rollout_id, attempt_id))

    async def park(self, lane: str) -> None:
        """Park the turns of a lane: wait until none of them is at the engine, and let none start."""
        await self._call(lambda sessions: sessions.park(lane))

    async def resume(self, lane: str) -> None:
        """Resume the parked turns of a lane."""
        await self._call(lambda sessions: _later(sessions.resume(lane)))

    async def weight_version(self) -> str:
        """Version of the engine's current weights, '' if not reported."""
        return (await self._call(lambda _: self._parts.engine.info())).weight_version

    async def quiet(self) -> None:
        """Abort all requests at the engine and wait until it is idle."""
        await self._call(lambda _: self._parts.engine.quiet())

    async def abort(self, origin: str) -> None:
        """Abort the engine requests of another process, by what leads their ids (see SessionSpec)."""
        await self._call(lambda _: self._parts.engine.abort_all_of(origin))

    async def pressure(self) -> Pressure:
        """The engine's load, and what its cache has kept so far of what this gateway's conversations come back to."""

        async def read(sessions: Sessions) -> Pressure:
            load = await self._parts.engine.reported_load()
            return Pressure(
                load=load,
                held=sessions.total(HELD),
                reused=sessions.total(REUSED),
                ended=sessions.ended,
                ended_tokens=sessions.ended_tokens,
            )

        return await self._call(read)

    async def counters(self) -> Counter[str]:
        return await self._call(lambda sessions: _later(Counter(sessions.counters)))

    async def in_flight(self) -> int:
        return await self._call(lambda sessions: _later(sessions.in_flight))

    async def listen(self, listening: socket.socket, under: str = "") -> None:
        """Serve a socket that listens elsewhere, such as in a sandbox; it becomes the gateway's.

        under: refuse requests whose path is not below this one.
        """
        await self._call(lambda _: self._elsewhere().listen(listening, under))

    async def forget(self, listening: socket.socket) -> None:
        """Close such a socket and its connections. Idempotent; a stopped gateway has closed it."""
        if self._loop is not None and self._loop.alive:
            await self._call(lambda _: self._elsewhere().forget(listening))

    def _elsewhere(self) -> Sockets:
        if self._sockets is None:
            raise SlimeAglError("the gateway is not running")
        return self._sockets

    async def _call(self, make: Callable[[Sessions], Awaitable[T]]) -> T:
        """Await make(sessions) on the gateway's loop."""

        async def run() -> T:
            if self._sessions is None:
                raise SlimeAglError("the gateway is not running")
            return await make(self._sessions)

        return await asyncio.wrap_future(self._submit(run))

    def _submit(self, make: Callable[[], Awaitable[T]]) -> Future[T]:
        if self._loop is None:
            raise SlimeAglError("the gateway is not running")

        async def run() -> T:
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
        committer = Committer(parts.renderer, parts.parser, parts.sink, parts.selection)
        maker = TurnMaker(PromptMaker(parts.renderer, parts.delta), sampler, committer)
        self._stack.callback(maker.close)
        keys_required = _keys_required(config, self._public(config.port))
        self._sessions = Sessions(maker, parts.engine, keys_required=keys_required, doorman=parts.doorman)
        door = Door(config.host, self._public(config.port))
        serve = build_surface(self._sessions, parts.renderer, parts.model, door, parts.sink)
        counters = self._sessions.counters
        listener = self._listener = Listener(serve, counters)
        self._stack.push_async_callback(listener.close)
        self._stack.push_async_callback(self._sessions.close)
        self._stack.callback(listener.stop_listening)
        try:
            port = await listener.listen(host=config.host, port=config.port, backlog=2048)
        except OSError as error:
            raise ConfigError(
                f"the gateway cannot bind {config.host}:{config.port} ({error.strerror or error}); "
                "set agl.gateway.port to a free port, or to 0 to take any"
            ) from error
        self._sockets = Sockets(serve, counters)
        self._stack.push_async_callback(self._sockets.close)
        self.url = self._public(port) or f"http://{_in_url(config.host)}:{port}"

    def _public(self, port: int) -> str | None:
        return self._config.url(host=socket.gethostname(), port=port)


def _keys_required(config: GatewayConfig, url: str | None) -> bool:
    """Return True if placeholder keys are refused: if configured, or if other machines can reach the gateway."""
    public = urlsplit(url).hostname if url else None
    return config.auth == "required" or not all(is_loopback(host) for host in (config.host, public) if host)


async def _later(value: T) -> T:
    return value


def _in_url(host: str) -> str:
    """The host as agents on this machine reach it; a wildcard address is not one to connect to."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
