"""Which address a request goes to: the router, or a worker when the router loses what training replays.

A stock sgl-router writes requests anew and leaves out the fields it does not know, among them those
that ask for routed experts and top-p sets. Its workers understand them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from typing import Protocol

from slime_agl.engine.base import EngineRequest, Replay
from slime_agl.engine.connections import Connections
from slime_agl.engine.replay import TOP_P_ASKED
from slime_agl.engine.wire import TryAgain, read_answer, refuse, request_body, words_of
from slime_agl.engine.workers import Workers
from slime_agl.errors import ConfigError, EngineRejected, InvariantError

logger = logging.getLogger(__name__)

PROBE_RID = "agl-replay-probe"
PROBE_SECONDS = 60.0
FRESH_SECONDS = 30.0
DEAD_SECONDS = 10.0
# What a worker that is gone, starting or overloaded answers; other faults belong to the request.
GONE = frozenset({None, 502, 503, 504})


class Route(Protocol):
    """Where requests go. `base` and `failed` are called for every try."""

    async def base(self, key: str) -> str:
        """The address for a routing key; the same key leads to the same worker while that lives."""
        ...

    def worker(self, base: str) -> str:
        """The one worker that serves what was sent to `base`; '' when it may be any."""
        ...

    def failed(self, base: str, status: int | None) -> None:
        """A try at `base` failed; status None: without an answer."""
        ...


class ByRouter:
    """Everything goes to the router, which pins routing keys itself."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def base(self, key: str) -> str:
        return self._url

    def worker(self, base: str) -> str:
        return ""

    def failed(self, base: str, status: int | None) -> None:
        pass


class ToWorkers:
    """Requests go to the workers that the router lists, a key to the one that it ranks first (rendezvous hashing).

    A worker that failed is left out for a while; only its keys move, and they come back to it. The
    list is read again now and then, and after a failure.
    """

    def __init__(self, workers: Workers, urls: Iterable[str]) -> None:
        self._workers = workers
        self._urls = tuple(urls)
        self._dead_until: dict[str, float] = {}
        self._fresh_until = 0.0

    async def base(self, key: str) -> str:
        now = asyncio.get_running_loop().time()
        if now >= self._fresh_until:
            self._fresh_until = now + FRESH_SECONDS
            listed = await self._workers.urls(fresh=True)
            # A router that does not answer, or lists nobody, is no reason to send anything through it.
            self._urls = listed if listed != (self._workers.url,) else self._urls
        alive = [url for url in self._urls if self._dead_until.get(url, 0.0) <= now]
        return ranked_first(key, alive or self._urls)

    def worker(self, base: str) -> str:
        return base

    def failed(self, base: str, status: int | None) -> None:
        if status in GONE:
            self._dead_until[base] = asyncio.get_running_loop().time() + DEAD_SECONDS
            self._fresh_until = 0.0


def ranked_first(key: str, urls: Iterable[str]) -> str:
    """The url with the highest hash together with `key`: taking one away moves the keys of that one only."""
    return max(urls, key=lambda url: hashlib.blake2b(f"{key}\n{url}".encode(), digest_size=8).digest())


async def choose_route(workers: Workers, posts: Connections, replay: Replay) -> Route:
    """The router, unless answers lose what is replayed on their way through it; then the workers.

    Raises:
        ConfigError: it is lost on both ways, or the workers cannot be asked directly.
    """
    if not replay or not (lost := await _probe(posts, workers.url, replay)):
        return ByRouter(workers.url)
    tried = [f"the router at {workers.url}: {lost}"]
    kinds = await workers.kinds()
    if kinds <= {"regular"}:
        urls = [url for url in await workers.urls(fresh=True) if url != workers.url]
        faults = await asyncio.gather(*(_probe(posts, url, replay) for url in urls))
        if urls and not any(faults):
            logger.warning(
                "replay data is lost at the router %s (%s): requests go to its %d workers directly, "
                "each session to one of them", workers.url, lost, len(urls),
            )  # fmt: skip
            return ToWorkers(workers, urls)
        tried += [f"its worker at {url}: {fault}" for url, fault in zip(urls, faults, strict=True) if fault]
    else:
        tried.append(
            f"its workers ({', '.join(sorted(kinds))}) serve each request together and cannot be asked one by one"
        )
    raise ConfigError(f"{_flags(replay)} needs data that does not arrive. Tried {'; '.join(tried)}. {_advice(replay)}")


async def _probe(posts: Connections, base: str, replay: Replay) -> str:
    """Sample one token and say what is wrong with its replay data, '' when nothing is."""
    params = {"max_new_tokens": 1, "temperature": 1.0}
    if replay.top_p is not None:
        params |= {"top_p": replay.top_p, "custom_params": {TOP_P_ASKED: True}}
    request = EngineRequest(b"1,1,1", 3, params, PROBE_RID, PROBE_RID, experts_width=replay.experts_width)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            status, body = await posts.post(f"{base}/generate", request_body(request, PROBE_RID))
        if status != 200:
            refuse(status, words_of(body), request)
        read_answer(body, request, 0.0)
    except (OSError, TimeoutError, TryAgain, EngineRejected, InvariantError) as fault:
        return str(fault) or type(fault).__name__
    return ""


def _flags(replay: Replay) -> str:
    experts = ["--use-rollout-routing-replay"] if replay.experts_width is not None else []
    return " and ".join([*experts, *([f"--rollout-top-p {replay.top_p}"] if replay.top_p is not None else [])])


def _advice(replay: Replay) -> str:
    return (
        "Start the engines of slime's own image (routed experts also need --sglang-enable-return-routed-experts), let "
        "this process reach the workers, or leave the flag out"
    )
