"""The SGLang servers behind a router, and the control calls that go to each of them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from slime_agl.engine.base import EngineInfo

logger = logging.getLogger(__name__)

FAULTS = (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError)
# Aborts come by the hundred when a step ends: a worker that did not answer one is not asked again for this long.
SILENCE_SECONDS = 10.0
QUIET_TRIES, QUIET_FIRST_PAUSE, QUIET_LONGEST_PAUSE = 24, 0.02, 2.0
DATA_PARALLEL_RANK = re.compile(r"@\d+$")


class Workers:
    """Control calls to the workers that `GET {url}/workers` lists, or to `url` itself when it lists none."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session
        self._urls: tuple[str, ...] = ()
        self._silent_until: dict[str, float] = {}

    async def urls(self, *, fresh: bool = False) -> tuple[str, ...]:
        """Base URLs of the workers; the list is kept until `fresh` asks for it anew."""
        if fresh or not self._urls:
            found = [worker["url"] for worker in await self._listed() if worker.get("url")]
            self._urls = tuple(dict.fromkeys(DATA_PARALLEL_RANK.sub("", found_url) for found_url in found))
        return self._urls or (self.url,)

    async def kinds(self) -> set[str]:
        """The kinds of workers listed: 'regular', or 'prefill' and 'decode' that serve each request together."""
        return {str(worker.get("worker_type") or "regular") for worker in await self._listed()}

    async def abort(self, rid: str, *, fresh: bool = False, at: str = "") -> None:
        """Post the abort to worker `at`, or to every worker at once. Silent ones are asked for anew next time."""
        now = asyncio.get_running_loop().time()
        urls = [at] if at else await self.urls(fresh=fresh)
        urls = [url for url in urls if self._silent_until.get(url, 0.0) <= now]
        reached = await asyncio.gather(*(self._post(url, "/abort_request", {"rid": rid}) for url in urls))
        if not all(reached):
            self._urls = ()

    async def quiet(self) -> None:
        """Return when every worker that says how much it holds holds nothing; what it holds is aborted."""
        await asyncio.gather(*(self._quiet(url) for url in await self.urls(fresh=True)))

    async def _quiet(self, url: str) -> None:
        for tries in range(QUIET_TRIES):
            load = await self.get(url, "/v1/loads?include=core")
            if load is None or not (held := requests_held(load)):
                return
            logger.debug("%s still holds %d requests", url, held)
            await self._post(url, "/abort_request", {"abort_all": True})
            await asyncio.sleep(min(QUIET_FIRST_PAUSE * 2**tries, QUIET_LONGEST_PAUSE))
        logger.warning("%s is not idle after %d aborts of all its requests; see its log", url, QUIET_TRIES)

    async def info(self) -> EngineInfo:
        """What the first worker that answers says of itself, else the router; unknown when nobody answers."""
        for base in dict.fromkeys((*await self.urls(), self.url)):
            model = await self.get(base, "/get_model_info") or {}
            server = await self.get(base, "/server_info") or await self.get(base, "/get_server_info") or {}
            if model or server:
                return _read_info(model, server)
        return EngineInfo()

    async def complaint(self) -> str:
        """Why a request sent to `url` now would fail, '' when it would not: nothing there, no workers, not healthy."""
        try:
            async with self._session.get(f"{self.url}/workers", allow_redirects=False) as response:
                listed = orjson.loads(await response.read()) if response.status == 200 else None
            if isinstance(listed, Mapping) and listed.get("workers") == []:
                return f"the router at {self.url} has no workers"
            if listed is not None:
                return ""
            async with self._session.get(f"{self.url}/health", allow_redirects=False) as response:
                return "" if response.status < 400 else f"{self.url}/health answers HTTP {response.status}"
        except FAULTS as fault:
            logger.debug("GET %s: %r", self.url, fault)
            return f"no sgl-router or SGLang server answers at {self.url}"

    async def get(self, base: str, path: str) -> Mapping[str, Any] | None:
        """The JSON object at `path`, None when there is none."""
        try:
            async with self._session.get(base + path) as response:
                value = orjson.loads(await response.read()) if response.status == 200 else None
        except FAULTS as fault:
            logger.debug("GET %s%s: %r", base, path, fault)
            return None
        return value if isinstance(value, Mapping) else None

    async def _listed(self) -> list[Mapping[str, Any]]:
        answer = await self.get(self.url, "/workers") or {}
        return [worker for worker in answer.get("workers") or () if isinstance(worker, Mapping)]

    async def _post(self, base: str, path: str, content: Mapping[str, Any]) -> bool:
        try:
            async with self._session.post(base + path, json=content) as response:
                if response.status < 400:
                    return True
                logger.debug("POST %s%s: HTTP %d", base, path, response.status)
        except FAULTS as fault:
            logger.debug("POST %s%s: %r", base, path, fault)
            if isinstance(fault, (aiohttp.ClientConnectorError, TimeoutError)):
                self._silent_until[base] = asyncio.get_running_loop().time() + SILENCE_SECONDS
        return False


def requests_held(load: Any) -> int:
    """Requests running and waiting, of what `/v1/loads` answers: a list of ranks, or one, under several names."""
    if isinstance(load, list):
        return sum(requests_held(rank) for rank in load)
    if not isinstance(load, Mapping):
        return 0
    if "loads" in load:
        return requests_held(load["loads"])
    for name in ("num_reqs", "num_total_reqs", "total_reqs"):
        if isinstance(load.get(name), int):
            return load[name]
    pairs = (("num_running_reqs", "total_running_reqs"), ("num_waiting_reqs", "total_waiting_reqs"))
    return sum(load.get(name, load.get(other)) or 0 for name, other in pairs)


def _read_info(model: Mapping[str, Any], server: Mapping[str, Any]) -> EngineInfo:
    version = model.get("weight_version", server.get("weight_version"))
    return EngineInfo(
        model_path=str(model.get("model_path") or server.get("model_path") or ""),
        context_length=_context_length(server),
        weight_version="" if version is None else str(version),
    )


def _context_length(server: Mapping[str, Any]) -> int | None:
    """The tightest limit that the server names: its context, its KV pool, or its longest input.

    `context_length` is null in `/server_info` unless it was given as a flag; `max_req_input_len` is the model's
    context less a few reserved tokens.
    """
    config = server.get("model_config")
    config = config if isinstance(config, Mapping) else {}
    limits = [server.get(name) for name in ("context_length", "max_req_input_len", "max_total_num_tokens")]
    limits += [config.get(name) for name in ("context_len", "max_position_embeddings")]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)
