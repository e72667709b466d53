"""Choose the address of a request: the router, or a worker if the router drops replay data or requests.

A stock sgl-router rewrites requests without the fields it does not know, among them those that request routed experts
and top-p sets; its workers understand them.

As slime starts it, a router has neither health checks nor a circuit breaker: a dead worker stays listed, fails faster
(HTTP 500) than the others answer, and so attracts most requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from slime_agl.engine.base import EngineRequest, Replay
from slime_agl.engine.connections import Connections, Posted
from slime_agl.engine.faults import TryAgain, refuse, words_of
from slime_agl.engine.generate import largest_answer, read_answer, request_body
from slime_agl.engine.id_text import IdText
from slime_agl.engine.replay import TOP_P_ASKED
from slime_agl.engine.workers import Workers
from slime_agl.errors import ConfigError, EngineRejected

logger = logging.getLogger(__name__)

PROBE_RID = "agl-replay-probe"
PROBE_SECONDS = 60.0
FRESH_SECONDS = 30.0
DEAD_SECONDS = 10.0
# Status of a worker that is gone, starting or overloaded; any other fault lies with the request.
GONE = frozenset({None, 502, 503, 504})
# Status a router answers with on behalf of such a worker.
FAILING = GONE | {500}
# Consecutive failures after which a router is bypassed although its workers are alive.
REPEATED = 8
# Seconds between checks of the workers: while requests go through the router, and while they bypass it.
LOOK_SECONDS, DIRECT_SECONDS, LONGEST_DIRECT_SECONDS = 1.0, 5.0, 300.0
SILENT_SECONDS = 60.0


class Route(Protocol):
    """Destination of requests.

    plain: the address of all requests while everything works, which saves a call per request. While it is '', callers
    ask `base` before a try and report `worked` after one. They always report `failed`.
    """

    plain: str

    async def base(self, key: str) -> str:
        """The address for a routing key: the same worker for the same key while that worker lives."""
        ...

    def worker(self, base: str) -> str:
        """The worker that serves requests sent to `base`; '' if it can be any."""
        ...

    def failed(self, base: str, status: int | None) -> None:
        """Report that a try at `base` failed. status: None if there was no answer."""
        ...

    def worked(self, base: str) -> None:
        """Report that a try at `base` was answered."""
        ...

    async def close(self) -> None: ...


class ToWorkers:
    """Send requests to the workers that the router lists, choosing one per key by rendezvous hashing.

    A failed worker is left out for a while; only its keys move, and they return to it. The list is refreshed
    periodically and after a failure.
    """

    plain = ""

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
            # Keep the old list if the router does not answer or lists no workers: it must not become the destination.
            self._urls = listed if listed != (self._workers.url,) else self._urls
        alive = [url for url in self._urls if self._dead_until.get(url, 0.0) <= now]
        return ranked_first(key, alive or self._urls)

    def worker(self, base: str) -> str:
        return base

    def failed(self, base: str, status: int | None) -> None:
        if status in GONE:
            self.leave_out(base, DEAD_SECONDS)
            self._fresh_until = 0.0

    def worked(self, base: str) -> None:
        self._dead_until.pop(base, None)

    def leave_out(self, base: str, seconds: float) -> None:
        self._dead_until[base] = asyncio.get_running_loop().time() + seconds

    async def close(self) -> None:
        """Nothing to close."""


class ByRouter:
    """Send requests to the router, which pins routing keys itself, while it and all its workers are alive.

    When tries fail, the workers are probed. If a worker or the router is silent, or the router keeps failing, requests
    go to the live workers directly (see `ToWorkers`), and back to the router once it and all listed workers answer.
    """

    def __init__(self, workers: Workers) -> None:
        self.plain = workers.url
        self._workers = workers
        self._direct: ToWorkers | None = None
        self._failures = 0
        self._checking: asyncio.Task[None] | None = None
        self._next_check = 0.0
        self._pause = DIRECT_SECONDS

    async def base(self, key: str) -> str:
        if self._direct is None:
            return self._workers.url
        self._check_soon()
        return await self._direct.base(key)

    def worker(self, base: str) -> str:
        return "" if base == self._workers.url else base

    def failed(self, base: str, status: int | None) -> None:
        self.plain = ""
        if base != self._workers.url:
            if self._direct is not None:
                self._direct.failed(base, status)
        elif status in FAILING:
            self._failures += 1
            if self._direct is None:
                self._check_soon()

    def worked(self, base: str) -> None:
        if base == self._workers.url:
            self._failures, self._pause = 0, DIRECT_SECONDS
            self.plain = "" if self._direct is not None else base
        elif self._direct is not None:
            self._direct.worked(base)

    async def close(self) -> None:
        check, self._checking = self._checking, None
        if check is not None:
            check.cancel()
            await asyncio.gather(check, return_exceptions=True)

    def _check_soon(self) -> None:
        loop = asyncio.get_running_loop()
        if self._checking is None and loop.time() >= self._next_check:
            self._checking = loop.create_task(self._check())

    async def _check(self) -> None:
        """Probe router and workers, and choose the destination of requests again."""
        workers = self._workers
        try:
            answers = await workers.listed()
            urls = [url for url in workers.known if url != workers.url]
            if not urls or (answers and not await workers.kinds() <= {"regular"}):
                return
            lives = await asyncio.gather(*(workers.alive(url) for url in urls))
            alive = [url for url, lives_on in zip(urls, lives, strict=True) if lives_on]
            silent = [url for url in urls if url not in alive]
            if not answers or silent or (self._direct is None and self._failures >= REPEATED):
                self._bypass(answers, alive, silent)
            elif self._direct is not None:
                logger.warning(
                    "the router %s and its %d workers answer: requests go through it", workers.url, len(urls)
                )
                self._direct, self._failures = None, 0
        finally:
            self._checking = None
            pause = LOOK_SECONDS if self._direct is None else self._pause
            self._next_check = asyncio.get_running_loop().time() + pause

    def _bypass(self, answers: bool, alive: list[str], silent: list[str]) -> None:
        if not alive:
            return
        if self._direct is None:
            why = f"failed {self._failures} times in a row"
            if silent:
                why = f"lists {len(silent)} workers that do not answer ({', '.join(silent)})"
            logger.warning(
                "the router %s %s: requests go to the %d workers that do directly, each session to one of them",
                self._workers.url,
                why if answers else "does not answer",
                len(alive),
            )
            self.plain, self._direct = "", ToWorkers(self._workers, alive)
            # Back off from a router that is bypassed again before it has answered anything.
            self._pause = DIRECT_SECONDS if silent or not answers else min(2 * self._pause, LONGEST_DIRECT_SECONDS)
        for url in silent:
            self._direct.leave_out(url, SILENT_SECONDS)


def ranked_first(key: str, urls: Iterable[str]) -> str:
    """The url with the highest hash combined with `key`, so that removing a url moves only its own keys."""
    return max(urls, key=lambda url: hashlib.blake2b(f"{key}\n{url}".encode(), digest_size=8).digest())


async def choose_route(workers: Workers, posts: Connections, replay: Replay) -> Route:
    """Choose the router, or the workers if replay data does not survive the router.

    Raises:
        ConfigError: replay data survives on neither route, or the workers cannot be addressed directly.
    """
    if not replay or not (lost := await _probe(posts, workers.url, replay)):
        await workers.listed()  # now, because the list is needed once the router is gone
        return ByRouter(workers)
    tried = [f"the router at {workers.url}: {lost}"]
    kinds = await workers.kinds()
    if kinds <= {"regular"}:
        urls = [url for url in await workers.urls(fresh=True) if url != workers.url]
        faults = await asyncio.gather(*(_probe(posts, url, replay) for url in urls))
        if urls and not any(faults):
            logger.warning(
                "replay data is lost at the router %s (%s): requests go to its %d workers directly, "
                "each session to one of them",
                workers.url,
                lost,
                len(urls),
            )
            return ToWorkers(workers, urls)
        tried += [f"its worker at {url}: {fault}" for url, fault in zip(urls, faults, strict=True) if fault]
    else:
        tried.append(
            f"its workers ({', '.join(sorted(kinds))}) serve each request together and cannot be asked one by one"
        )
    raise ConfigError(f"{_flags(replay)} needs data that does not arrive. Tried {'; '.join(tried)}. {_advice(replay)}")


async def _probe(posts: Connections, base: str, replay: Replay) -> str:
    """Sample one token and describe what is wrong with its replay data; '' if nothing is."""
    params: dict[str, Any] = {"max_new_tokens": 1, "temperature": 1.0}
    if replay.top_p is not None:
        params |= {"top_p": replay.top_p, "custom_params": {TOP_P_ASKED: True}}
    request = EngineRequest(
        prompt=IdText((b"1,1,1",), 3),
        sampling_params=params,
        rid=PROBE_RID,
        session_key=PROBE_RID,
        experts_width=replay.experts_width,
    )

    def read(answer: Posted) -> None:
        if answer.status != 200:
            refuse(answer.status, words_of(answer.body), request)
        read_answer(answer.body, request, PROBE_RID)

    try:
        async with asyncio.timeout(PROBE_SECONDS):
            body, largest = request_body(request, PROBE_RID), largest_answer(request)
            await posts.post(f"{base}/generate", body, read=read, largest=largest)
    except (OSError, TimeoutError, TryAgain, EngineRejected) as fault:
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
