"""The SGLang servers behind a router, and the control calls that go to each of them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from slime_agl.engine.answer import version_fault
from slime_agl.engine.base import EngineInfo

logger = logging.getLogger(__name__)

FAULTS = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
# Aborts come by the hundred when a step ends: a worker that did not answer one is not asked again for this long.
SILENCE_SECONDS = 10.0
QUIET_TRIES, QUIET_FIRST_PAUSE, QUIET_LONGEST_PAUSE = 24, 0.02, 2.0
# Tries at a worker that does not say what it holds.
UNKNOWN_TRIES = 2
LOADS = ("/v1/loads?include=core", "/get_load")
LARGEST_CONTROL = 1 << 24
DATA_PARALLEL_RANK = re.compile(r"@\d+$")


class Workers:
    """Control calls to the workers that `GET {url}/workers` lists, or to `url` itself when it lists none."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session
        self._urls: tuple[str, ...] = ()
        self._stale = True
        self._silent_until: dict[str, float] = {}
        self._unknown: set[str] = set()

    async def urls(self, *, fresh: bool = False) -> tuple[str, ...]:
        """Base URLs of the workers, kept until `fresh` asks for them anew, and when the router lists none any more."""
        if fresh or self._stale:
            await self.listed()
        return self._urls or (self.url,)

    @property
    def known(self) -> tuple[str, ...]:
        """The workers that the router listed last; none when it never did."""
        return self._urls

    async def listed(self) -> bool:
        """Read the list anew; whether the router answered with one that names workers."""
        found = [worker["url"] for worker in await self._entries() if _is_http(worker.get("url"))]
        urls = tuple(dict.fromkeys(DATA_PARALLEL_RANK.sub("", url).rstrip("/") for url in found))
        self._urls, self._stale = urls or self._urls, not urls
        return bool(urls)

    async def kinds(self) -> set[str]:
        """The kinds of workers listed: 'regular', or 'prefill' and 'decode' that serve each request together."""
        return {str(worker.get("worker_type") or "regular") for worker in await self._entries()}

    async def alive(self, url: str) -> bool:
        """Whether a server answers at `url`, whatever it says. It is not asked for its health, as that can sample."""
        try:
            async with self._session.get(f"{url}/model_info", allow_redirects=False):
                return True
        except FAULTS as fault:
            logger.debug("GET %s/model_info: %r", url, fault)
            return False

    async def abort(self, rid: str, *, fresh: bool = False, at: str = "") -> None:
        """Post the abort to worker `at`, or to every worker at once. Silent ones are asked for anew next time."""
        now = asyncio.get_running_loop().time()
        urls = [at] if at else await self.urls(fresh=fresh)
        urls = [url for url in urls if self._silent_until.get(url, 0.0) <= now]
        reached = await asyncio.gather(*(self._post(url, "/abort_request", {"rid": rid}) for url in urls))
        if not all(reached):
            self._stale = True

    async def quiet(self) -> None:
        """Return when every worker says that it holds nothing; what it holds is aborted.

        One that does not say is told to abort everything and is warned of.
        """
        await asyncio.gather(*(self._quiet(url) for url in await self.urls(fresh=True)))

    async def _quiet(self, url: str) -> None:
        unknown = 0
        for tries in range(QUIET_TRIES):
            held = await self._held(url)
            if held == 0:
                self._unknown.discard(url)
                return
            unknown += held is None
            if unknown > UNKNOWN_TRIES:
                self._say_unknown(url)
                return
            logger.debug("%s still holds %s requests", url, held)
            await self._post(url, "/abort_request", {"abort_all": True})
            await asyncio.sleep(min(QUIET_FIRST_PAUSE * 2**tries, QUIET_LONGEST_PAUSE))
        logger.warning("%s is not idle after %d aborts of all its requests; see its log", url, QUIET_TRIES)

    def _say_unknown(self, url: str) -> None:
        if url not in self._unknown:
            self._unknown.add(url)
            logger.warning(
                "%s does not say how many requests it holds (GET /v1/loads, asked %d times): it was told to abort all "
                "of them, but whether it is idle is unknown; see its log",
                url, UNKNOWN_TRIES + 1,
            )  # fmt: skip

    async def _held(self, url: str) -> int | None:
        """Requests that a worker says it holds, None when it does not say; one that is gone holds none."""
        for path in LOADS:
            try:
                held = requests_held(await self._fetched(url, path))
            except aiohttp.ClientConnectorError as fault:
                logger.debug("%s is gone, and what it held with it: %r", url, fault)
                return 0
            except FAULTS as fault:
                logger.debug("GET %s%s: %r", url, path, fault)
                return None
            if held is not None:
                return held
        return None

    async def info(self) -> EngineInfo:
        """What the first worker that answers says of itself, else the router; unknown when nobody answers."""
        for base in dict.fromkeys((*await self.urls(), self.url)):
            model = await self.get(base, "/model_info") or await self.get(base, "/get_model_info") or {}
            server = await self.get(base, "/server_info") or await self.get(base, "/get_server_info") or {}
            if model or server:
                return _read_info(model, server)
        return EngineInfo()

    async def complaint(self) -> str:
        """Why a request sent to `url` now would fail, '' when it would not: nothing there, no workers, not healthy."""
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

    async def get(self, base: str, path: str) -> Mapping[str, Any] | None:
        """The JSON object at `path`, None when there is none."""
        value = await self._json(base, path)
        return value if isinstance(value, Mapping) else None

    async def _json(self, base: str, path: str) -> Any:
        try:
            return await self._fetched(base, path)
        except FAULTS as fault:
            logger.debug("GET %s%s: %r", base, path, fault)
            return None

    async def _fetched(self, base: str, path: str) -> Any:
        async with self._session.get(base + path, allow_redirects=False) as response:
            return orjson.loads(await _read(response)) if response.status == 200 else None

    async def _entries(self) -> list[Mapping[str, Any]]:
        answer = await self.get(self.url, "/workers") or {}
        workers = answer.get("workers")
        return [worker for worker in workers if isinstance(worker, Mapping)] if isinstance(workers, list) else []

    async def _post(self, base: str, path: str, content: Mapping[str, Any]) -> bool:
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


def requests_held(load: Any) -> int | None:
    """Requests running and waiting, of what `/v1/loads` answers: a list of ranks, or one, under several names.

    None when it does not say, or says what cannot be.
    """
    if isinstance(load, list):
        ranks = [requests_held(rank) for rank in load]
        return None if not ranks or None in ranks else sum(ranks)
    if not isinstance(load, Mapping):
        return None
    if "loads" in load:
        return requests_held(load["loads"])
    for name in ("num_reqs", "num_total_reqs", "total_reqs"):
        if load.get(name) is not None:
            return _count(load[name])
    pairs = (("num_running_reqs", "total_running_reqs"), ("num_waiting_reqs", "total_waiting_reqs"))
    said = [load.get(name, load.get(other)) for name, other in pairs]
    counts = [_count(value) for value in said if value is not None]
    return None if not counts or None in counts else sum(counts)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body of a control call. Raises ValueError when it is longer than any of them is."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > LARGEST_CONTROL:
            raise ValueError(f"{response.url} answers more than {LARGEST_CONTROL} bytes")
    return bytes(body)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _is_http(url: Any) -> bool:
    return isinstance(url, str) and url.startswith(("http://", "https://"))


def _read_info(model: Mapping[str, Any], server: Mapping[str, Any]) -> EngineInfo:
    version = model.get("weight_version", server.get("weight_version"))
    if fault := version_fault(version):
        logger.warning("an engine says that its weight_version is %s; it is taken for unknown", fault)
        version = None
    return EngineInfo(
        model_path=next((said for said in (model.get("model_path"), server.get("model_path")) if _is_text(said)), ""),
        context_length=_context_length(server),
        weight_version="" if version is None else str(version),
        vocab_size=_count(model.get("vocab_size", server.get("vocab_size"))) or None,
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _context_length(server: Mapping[str, Any]) -> int | None:
    """The tightest limit that the server names: its context, its KV pool, or its longest input.

    `context_length` is null in `/server_info` unless it was given as a flag; `max_req_input_len` is the model's
    context less a few reserved tokens.
    """
    config = server.get("model_config")
    config = config if isinstance(config, Mapping) else {}
    limits = [server.get(name) for name in ("context_length", "max_req_input_len", "max_total_num_tokens")]
    limits += [config.get(name) for name in ("context_len", "max_position_embeddings")]
    return min((limit for limit in limits if _count(limit)), default=None)
