from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web
from engine_helpers import Handler

from slime_agl.engine.retry import Backoff
from slime_agl.engine.router import RouterEngine

AT_ONCE = Backoff(first=0.0, longest=0.0)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Awaitable[RouterEngine]]]:
    """A function: a started engine client without pauses between tries, closed after the test."""
    async with AsyncExitStack() as stack:

        async def start(url: str, **options: Any) -> RouterEngine:
            engine = RouterEngine(url, **{"backoff": AT_ONCE, **options})
            stack.push_async_callback(engine.close)
            await engine.start()
            return engine

        yield start


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """A function: serve handlers, given as {"METHOD path": handler}, on a loopback port; returns the URL."""
    async with AsyncExitStack() as stack:

        async def start(routes: dict[str, Handler]) -> str:
            app = web.Application()
            for route, handler in routes.items():
                app.router.add_route(*route.split(" "), handler)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return f"http://127.0.0.1:{runner.addresses[0][1]}"

        yield start
