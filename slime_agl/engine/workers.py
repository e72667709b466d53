"""Control calls to the SGLang servers behind a router."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import TypeGuard

import aiohttp
import orjson

from slime_agl.engine.base import EngineInfo, Load
from slime_agl.engine.generate import version_fault

logger = logging.getLogger(__name__)

FAULTS = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
# Hundreds of aborts go out when a step ends, so a worker that missed one is skipped for this long.
SILENCE_SECONDS = 10.0
QUIET_TRIES, QUIET_FIRST_PAUSE, QUIET_LONGEST_PAUSE = 24, 0.02, 2.0
# Retries with a worker that does not report its load.
UNKNOWN_TRIES = 2
LOADS = ("/v1/loads?include=core", "/get_load")
LARGEST_CONTROL = 1 << 24
DATA_PARALLEL_RANK = re.compile(r"@\d+$")


class Workers:
    """Control calls to the workers that `GET {url}/workers` lists, or to `url` itself if it lists none."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session
        self._urls: tuple[str, ...] = ()
        self._stale = True
        self._silent_until: dict[str, float] = {}
        self._unknown: set[str] = set()

    async def urls(self, *, fresh: bool = False) -> tuple[str, ...]:
        """Base URLs of the workers; `fresh` asks again. Keeps the last known ones if the router lists none any more."""
        if fresh or self._stale:
            await self.listed()
        return self._urls or (self.url,)

    @property
    def known(self) -> tuple[str, ...]:
        """The workers that the router listed last; empty if it never listed any."""
        return self._urls

    async def listed(self) -> bool:
        """Refresh the list; return whether the router named any workers."""
        named = [worker.get("url") for worker in await self._entries()]
        urls = tuple(dict.fromkeys(DATA_PARALLEL_RANK.sub("", url).rstrip("/") for url in named if _is_http(url)))
        self._urls, self._stale = urls or self._urls, not urls
        return bool(urls)

    async def kinds(self) -> set[str]:
        """Kinds of the listed workers: 'regular', or 'prefill' and 'decode', which serve each request together."""
        return {str(worker.get("worker_type") or "regular") for worker in await self._entries()}

    async def alive(self, url: str) -> bool:
        """Whether anything answers at `url`. Does not ask for /health, which can sample."""
        try:
            async with self._session.get(f"{url}/model_info", allow_redirects=False):
                return True
        except FAULTS as fault:
            logger.debug("GET %s/model_info: %r", url, fault)
            return False

    async def abort(self, rid: str, *, fresh: bool = False, at: str = "") -> None:
        """Post an abort to worker `at`, or to all workers at once. A silent worker refreshes the list next time."""
        now = asyncio.get_running_loop().time()
        urls = [at] if at else await self.urls(fresh=fresh)
        urls = [url for url in urls if self._silent_until.get(url, 0.0) <= now]
        reached = await asyncio.gather(*(self._post(url, "/abort_request", {"rid": rid}) for url in urls))
        if not all(reached):
            self._stale = True

    async def quiet(self) -> None:
        """Abort all requests and wait until every worker reports none.

        A worker that does not report its load is told to abort everything, and logged.
        """
        await asyncio.gather(*(self._quiet(url) for url in await self.urls(fresh=True)))

    async def _quiet(self, url: str) -> None:
        unknown = 0
        for tries in range(QUIET_TRIES):
            pending = await self._pending(url)
            if pending == 0:
                self._unknown.discard(url)
                return
            unknown += pending is None
            if unknown > UNKNOWN_TRIES:
                self._warn_unknown(url)
                return
            logger.debug("%s still has %s requests", url, pending)
            await self._post(url, "/abort_request", {"abort_all": True})
            await asyncio.sleep(min(QUIET_FIRST_PAUSE * 2**tries, QUIET_LONGEST_PAUSE))
        logger.warning("%s is not idle after %d aborts of all its requests; see its log", url, QUIET_TRIES)

    def _warn_unknown(self, url: str) -> None:
        if url not in self._unknown:
            self._unknown.add(url)
            logger.warning(
                "%s does not say how many requests it holds (GET /v1/loads, asked %d times): it was told to abort all "
                "of them, but whether it is idle is unknown; see its log",
                url,
                UNKNOWN_TRIES + 1,
            )

    async def _pending(self, url: str) -> int | None:
        """Number of requests a worker reports, None if it does not report any number; 0 for a worker that is gone."""
        for path in LOADS:
            try:
                pending = pending_requests(await self._fetched(url, path))
            except aiohttp.ClientConnectorError as fault:
                logger.debug("%s is gone, and its requests with it: %r", url, fault)
                return 0
            except FAULTS as fault:
                logger.debug("GET %s%s: %r", url, path, fault)
                return None
            if pending is not None:
                return pending
        return None

    async def load(self) -> Load | None:
        """Load over all workers; None if one does not report how many of its requests run and wait."""
        answers = await asyncio.gather(*(self._json(url, LOADS[0]) for url in await self.urls()))
        ranks = [rank for answer in answers for rank in (_ranks(answer) or [None])]
        running = [_count(rank.get("num_running_reqs")) if rank else None for rank in ranks]
        waiting = [_count(rank.get("num_waiting_reqs")) if rank else None for rank in ranks]
        totals = _total(running), _total(waiting)
        if totals[0] is None or totals[1] is None:
            return None
        usages = [usage for rank in ranks if rank and (usage := _share(rank.get("token_usage"))) is not None]
        capacity = _total([_count(rank.get("max_total_num_tokens")) if rank else None for rank in ranks])
        return Load(totals[0], totals[1], max(usages, default=None), capacity or None)

    async def info(self) -> EngineInfo:
        """Self-description of the first worker that answers, else of the router; unknown if neither answers."""
        for base in dict.fromkeys((*await self.urls(), self.url)):
            model = await self.get(base, "/model_info") or await self.get(base, "/get_model_info") or {}
            server = await self.get(base, "/server_info") or await self.get(base, "/get_server_info") or {}
            if model or server:
                return _read_info(model, server)
        return EngineInfo()

    async def complaint(self) -> str:
        """Say why a request to `url` would fail now (unreachable, no workers, unhealthy); '' if it would not."""
        try:
            async with self._session.get(f"{self.url}/workers", allow_redirects=False) as response:
                listed = orjson.loads(await _read(response)) if response.status == 200 else None
            if isinstance(listed, Mapping) and listed.get("workers") == []:
                return f"the router at {self.url} has no workers"
            if listed is not None:
                return ""
            async with self._session.get(f"{self.url}/health", allow_redirects=False) as response:
                return "" if response.status < 400 else f"{self.url}/health answers HTTP {response.status}"
        except FAULTS as fault:
            logger.debug("GET %s: %r", self.url, fault)
            return f"no sgl-router or SGLang server answers at {self.url}"

    async def get(self, base: str, path: str) -> Mapping[str, object] | None:
        """Fetch the JSON object at `path`; None if there is none."""
        value = await self._json(base, path)
        return value if isinstance(value, Mapping) else None

    async def _json(self, base: str, path: str) -> object:
        try:
            return await self._fetched(base, path)
        except FAULTS as fault:
            logger.debug("GET %s%s: %r", base, path, fault)
            return None

    async def _fetched(self, base: str, path: str) -> object:
        async with self._session.get(base + path, allow_redirects=False) as response:
            return orjson.loads(await _read(response)) if response.status == 200 else None

    async def _entries(self) -> list[Mapping[str, object]]:
        answer = await self.get(self.url, "/workers") or {}
        workers = answer.get("workers")
        return [worker for worker in workers if isinstance(worker, Mapping)] if isinstance(workers, list) else []

    async def _post(self, base: str, path: str, content: Mapping[str, object]) -> bool:
        try:
            async with self._session.post(base + path, json=content, allow_redirects=False) as response:
                if response.status < 400:
                    return True
                logger.debug("POST %s%s: HTTP %d", base, path, response.status)
        except FAULTS as fault:
            logger.debug("POST %s%s: %r", base, path, fault)
            if isinstance(fault, (aiohttp.ClientConnectorError, TimeoutError)):
                self._silent_until[base] = asyncio.get_running_loop().time() + SILENCE_SECONDS
        return False


def pending_requests(load: object) -> int | None:
    """Add up running and waiting requests in a `/v1/loads` answer: one rank or a list of them, in any known shape.

    None if a number is missing or impossible.
    """
    if isinstance(load, list):
        return _total([pending_requests(rank) for rank in load])
    if not isinstance(load, Mapping):
        return None
    if "loads" in load:
        return pending_requests(load["loads"])
    for name in ("num_reqs", "num_total_reqs", "total_reqs"):
        if load.get(name) is not None:
            return _count(load[name])
    pairs = (("num_running_reqs", "total_running_reqs"), ("num_waiting_reqs", "total_waiting_reqs"))
    said = [load.get(name, load.get(other)) for name, other in pairs]
    return _total([_count(value) for value in said if value is not None])


def _ranks(answer: object) -> list[Mapping[str, object]]:
    """The ranks of a `/v1/loads` answer."""
    loads = answer.get("loads") if isinstance(answer, Mapping) else None
    return [rank for rank in loads if isinstance(rank, Mapping)] if isinstance(loads, list) else []


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read the body of a control call. Raises ValueError if it is longer than any legitimate one."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > LARGEST_CONTROL:
            raise ValueError(f"{response.url} answers more than {LARGEST_CONTROL} bytes")
    return bytes(body)


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _is_http(url: object) -> TypeGuard[str]:
    return isinstance(url, str) and url.startswith(("http://", "https://"))


def _read_info(model: Mapping[str, object], server: Mapping[str, object]) -> EngineInfo:
    version = model.get("weight_version", server.get("weight_version"))
    if fault := version_fault(version):
        logger.warning("an engine reports the weight_version %s; treating it as unknown", fault)
        version = None
    return EngineInfo(
        model_path=_text(model.get("model_path")) or _text(server.get("model_path")),
        context_length=_context_length(server),
        weight_version="" if version is None else str(version),
        vocab_size=_count(model.get("vocab_size", server.get("vocab_size"))) or None,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _context_length(server: Mapping[str, object]) -> int | None:
    """The tightest limit that the server reports: context, KV pool, or longest input.

    `context_length` is null in `/server_info` unless set by a flag; `max_req_input_len` is the model's context minus a
    few reserved tokens.
    """
    config = server.get("model_config")
    config = config if isinstance(config, Mapping) else {}
    limits = [server.get(name) for name in ("context_length", "max_req_input_len", "max_total_num_tokens")]
    limits += [config.get(name) for name in ("context_len", "max_position_embeddings")]
    return min((count for limit in limits if (count := _count(limit))), default=None)
