"""Requests to engines, and handlers that stand in for them."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.id_text import IdText

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def ask(
    ids: list[int], rid: str = "r", session: str = "s", extra: dict[str, Any] | None = None, **params: Any
) -> EngineRequest:
    return EngineRequest(
        prompt=IdText().extended(array("i", ids)),
        sampling_params=params,
        rid=rid,
        session_key=session,
        extra=extra or {},
    )


def says(value: Any, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(value, status=status)

    return handler
