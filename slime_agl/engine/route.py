"""Which address a request goes to: the router, or a worker when the router loses what training replays, or requests.

A stock sgl-router writes requests anew and leaves out the fields it does not know, among them those
that ask for routed experts and top-p sets. Its workers understand them.

As slime starts it, a router has neither health checks nor a circuit breaker: a worker that died stays listed, answers
faster than the others (HTTP 500), and so gets most requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from typing import Protocol

from slime_agl.engine.answer import largest_answer, read_answer
from slime_agl.engine.base import EngineRequest, Replay
from slime_agl.engine.connections import Connections, Posted
from slime_agl.engine.faults import TryAgain
from slime_agl.engine.replay import TOP_P_ASKED
from slime_agl.engine.wire import refuse, request_body, words_of
from slime_agl.engine.workers import Workers
from slime_agl.errors import ConfigError, EngineRejected

logger = logging.getLogger(__name__)

PROBE_RID = "agl-replay-probe"
PROBE_SECONDS = 60.0
FRESH_SECONDS = 30.0
DEAD_SECONDS = 10.0
# What a worker that is gone, starting or overloaded answers; other faults belong to the request.
GONE = frozenset({None, 502, 503, 504})
# What a router answers for such a worker.
FAILING = GONE | {500}
# Failures in a row at a router whose workers live, after which it is passed by.
REPEATED = 8
# Between two looks at the workers: while requests go through the router, and while they do not.
LOOK_SECONDS, DIRECT_SECONDS, LONGEST_DIRECT_SECONDS = 1.0, 5.0, 300.0
SILENT_SECONDS = 60.0


class Route(Protocol):
    """Where requests go.

    plain: the address of all requests while nothing is amiss. While it is '', `base` is asked before a try, and
    `worked` told after one; `failed` is always told.
    """

    plain: str

    async def base(self, key: str) -> str:
        """The address for a routing key; the same key leads to the same worker while that lives."""
        ...

    def worker(self, base: str) -> str:
        """The one worker that serves what was sent to `base`; '' when it may be any."""
        ...

    def failed(self, base: str, status: int | None) -> None:
        """A try at `base` failed; status None: without an answer."""
        ...

    def worked(self, base: str) -> None:
        """A try at `base` was answered."""
        ...

    async def close(self) -> None: ...


class ToWorkers:
    """Requests go to the workers that the router lists, a key to the one that it ranks first (rendezvous hashing).

    A worker that failed is left out for a while; only its keys move, and they come back to it. The
    list is read again now and then, and after a failure.
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
            # A router that does not answer, or lists nobody, is no reason to send anything through it.
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
    """Requests go to the router, which pins routing keys itself, as long as it and all its workers live.

    When tries fail, the workers are asked for a sign of life. If one gives none, if the router gives none, or if it
    fails again and again, requests go to the living workers directly (see `ToWorkers`), and back to the router when
    that and all the workers it lists answer.
    """

    def __init__(self, workers: Workers) -> None:
        self.plain = workers.url
        self._workers = workers
        self._direct: ToWorkers | None = None
        self._failures = 0
        self._look: asyncio.Task[None] | None = None
        self._next_look = 0.0
        self._pause = DIRECT_SECONDS

    async def base(self, key: str) -> str:
        if self._direct is None:
            return self._workers.url
        self._look_now()
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
                self._look_now()

    def worked(self, base: str) -> None:
        if base == self._workers.url:
            self._failures, self._pause = 0, DIRECT_SECONDS
            self.plain = "" if self._direct is not None else base
        elif self._direct is not None:
            self._direct.worked(base)

    async def close(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            look.cancel()
            await asyncio.gather(look, return_exceptions=True)

    def _look_now(self) -> None:
        loop = asyncio.get_running_loop()
        if self._look is None and loop.time() >= self._next_look:
            self._look = loop.create_task(self._looked())

    async def _looked(self) -> None:
        """Decide anew where requests go."""
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
                self._pass_by(answers, alive, silent)
            elif self._direct is not None:
                logger.warning(
                    "the router %s and its %d workers answer: requests go through it", workers.url, len(urls)
                )
                self._direct, self._failures = None, 0
        finally:
            self._look = None
            pause = LOOK_SECONDS if self._direct is None else self._pause
            self._next_look = asyncio.get_running_loop().time() + pause

    def _pass_by(self, answers: bool, alive: list[str], silent: list[str]) -> None:
        if not alive:
            return
        if self._direct is None:
            why = f"lists {len(silent)} workers that do not answer ({', '.join(silent)})" if silent else (
                f"failed {self._failures} times in a row"
            )  # fmt: skip
            logger.warning(
                "the router %s %s: requests go to the %d workers that do directly, each session to one of them",
                self._workers.url, why if answers else "does not answer", len(alive),
            )  # fmt: skip
            self.plain, self._direct = "", ToWorkers(self._workers, alive)
            # A router that is passed by again before it has worked is tried less and less often.
            self._pause = DIRECT_SECONDS if silent or not answers else min(2 * self._pause, LONGEST_DIRECT_SECONDS)
        for url in silent:
            self._direct.leave_out(url, SILENT_SECONDS)


def ranked_first(key: str, urls: Iterable[str]) -> str:
    """The url with the highest hash together with `key`: taking one away moves the keys of that one only."""
    return max(urls, key=lambda url: hashlib.blake2b(f"{key}\n{url}".encode(), digest_size=8).digest())


async def choose_route(workers: Workers, posts: Connections, replay: Replay) -> Route:
    """The router, unless answers lose what is replayed on their way through it; then the workers.

    Raises:
        ConfigError: it is lost on both ways, or the workers cannot be asked directly.
    """
    if not replay or not (lost := await _probe(posts, workers.url, replay)):
        await workers.listed()  # it cannot be asked when it is gone
        return ByRouter(workers)
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
