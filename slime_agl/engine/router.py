"""Client of an sgl-router, or of a single SGLang server: `/generate` with retries, and aborts that take effect."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import aiohttp
from msgspec import Struct, field

from slime_agl.engine.base import EngineInfo, EngineRequest, Load, Replay
from slime_agl.engine.connections import IDLE_SECONDS, ConnectionBroke, Connections, NotConnected, Posted
from slime_agl.engine.faults import TryAgain, WrongAnswer, refuse, words_of
from slime_agl.engine.generate import largest_answer, nothing_sampled, read_answer, request_body
from slime_agl.engine.retry import Backoff, RoutingKeys
from slime_agl.engine.route import Route, choose_route
from slime_agl.engine.workers import Workers
from slime_agl.errors import EngineRejected, EngineUnavailable
from slime_agl.trace.turn import Sampled

logger = logging.getLogger(__name__)

NO_REPLAY = Replay()
ROUTING_KEY = "X-SMG-Routing-Key"
CONTROL_SECONDS = 5.0
CONTROL_CONNECTIONS = 64
# A wrong answer costs a whole generation, and an engine that gives several in a row will not recover by itself.
MOST_WRONG = 5
# A worker ignores an abort for an id that has not reached it yet, so the abort is repeated until the request ends.
ABORT_PAUSES = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(slots=True)
class Counters:
    """requests: generate calls so far. retries: tries after the first. in_flight: calls not answered yet."""

    requests: int = 0
    retries: int = 0
    in_flight: int = 0


class _Flight(Struct):
    """A generate call in flight. rid, base: id and address of its latest try."""

    rid: str
    route: Route
    base: str = ""
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    clock: asyncio.Timeout | None = None

    def drop(self) -> None:
        """Stop waiting for the answer. The connection closes, which also tells the worker."""
        if self.clock is not None and not self.clock.expired() and not self.ended.is_set():
            self.clock.reschedule(asyncio.get_running_loop().time())


class RouterEngine:
    """`slime_agl.engine.base.Engine` over HTTP.

    url: address of the router, or of a single SGLang server.
    timeout: seconds for one generate call including retries; None leaves the deadline to the caller.
    max_retries: tries after the first on connection errors, 408, 429, 5xx and wrong answers (at most MOST_WRONG).
    connection_limit: limit on concurrent generate calls, 0 for none. Control calls have their own connections, so an
        abort never queues behind the requests it should end.
    replay: replay data that answers must hold; if the router drops it, requests go to the workers directly.
    vocab_size: number of ids the model can sample; None asks the engine, which may not know.

    Every retry travels under a new request id (`1~rid`, `2~rid`, ...): a try whose answer was lost may still be
    running, and a worker refuses an id that it already has. The number leads because a worker aborts all ids with the
    given prefix.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float | None = None,
        max_retries: int = 12,
        connection_limit: int = 0,
        start_timeout: float = 5.0,
        backoff: Backoff | None = None,
        rekey_after: int = 2,
        replay: Replay = NO_REPLAY,
        vocab_size: int | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"engine url is {url!r}, it must start with http:// or https://")
        self.url = url.rstrip("/")
        self.counters = Counters()
        self.keys = RoutingKeys(rekey_after)
        self._timeout = timeout
        self._max_retries = max_retries
        self._replay = replay
        self._vocab_size = vocab_size
        self._start_timeout = start_timeout
        self._backoff = backoff or Backoff()
        self._flights: dict[str, _Flight] = {}
        self._control: aiohttp.ClientSession | None = None
        self._posts = Connections(connection_limit)
        self._route: Route | None = None

    async def start(self) -> None:
        """Open the connection pools and wait until requests can be answered.

        Raises:
            EngineUnavailable: nothing answers within `start_timeout` seconds, or a router has no workers.
            ConfigError: no route delivers replay data.
        """
        self._control = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONTROL_CONNECTIONS, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=CONTROL_SECONDS),
            # The length of a compressed body does not bound its content.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._workers = Workers(self.url, self._control)
        try:
            await self._wait_until_ready()
            if self._vocab_size is None:
                self._vocab_size = (await self._workers.info()).vocab_size
            self._route = await choose_route(self._workers, self._posts, self._replay)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections. May be called twice."""
        if self._route is not None:
            await self._route.close()
        await self._posts.close()
        if self._control is not None:
            await self._control.close()

    async def info(self) -> EngineInfo:
        return await self._workers.info()

    async def generate(self, request: EngineRequest) -> Sampled:
        """Sample; see `Engine.generate`. Cancelling drops the connection."""
        if self._route is None:
            raise EngineUnavailable(f"the client of {self.url} has not been started; call `start` first")
        if request.rid in self._flights:
            raise EngineRejected(f"request id {request.rid} is in flight already; use each id for one request")
        flight = self._flights[request.rid] = _Flight(request.rid, self._route)
        self.counters.requests += 1
        self.counters.in_flight += 1
        try:
            async with asyncio.timeout(self._timeout) as flight.clock:
                return await self._until_answered(request, flight)
        except TimeoutError as late:
            if flight.aborted.is_set():
                return nothing_sampled(request)
            raise EngineUnavailable(
                f"{self.url} did not answer request {request.rid} within {self._timeout} s; "
                "the engine is overloaded or stuck: see its log, or allow more time"
            ) from late
        finally:
            self.counters.in_flight -= 1
            del self._flights[request.rid]
            flight.ended.set()

    async def abort(self, rid: str) -> None:
        """Abort request `rid` and wait until its `generate` call has ended.

        The abort is repeated because it may overtake its request. If no repetition takes effect, the connection is
        dropped and `generate` returns no tokens.
        """
        flight = self._flights.get(rid)
        if flight is None:
            await self._workers.abort(rid)
            return
        flight.aborted.set()
        for tries, pause in enumerate(ABORT_PAUSES):
            await self._workers.abort(flight.rid, fresh=tries > 0, at=flight.route.worker(flight.base))
            if await _happens(flight.ended, pause):
                return
        logger.debug("request %s outlived %d aborts; dropping its connection", rid, len(ABORT_PAUSES))
        flight.drop()
        await flight.ended.wait()

    async def abort_all_of(self, origin: str) -> None:
        """Abort the requests of another process, their retries included."""
        leads = [origin, *(f"{number}~{origin}" for number in range(1, self._max_retries + 1))]
        await asyncio.gather(*(self._workers.abort(lead) for lead in leads))

    async def reported_load(self) -> Load | None:
        return await self._workers.load()

    async def quiet(self) -> None:
        """Abort all requests at the workers, whoever sent them, and wait until they are idle. Never raises."""
        await self._workers.quiet()

    async def _until_answered(self, request: EngineRequest, flight: _Flight) -> Sampled:
        failures = wrong = 0
        while True:
            key = self.keys.key(request.session_key) if self.keys.states else request.session_key
            try:
                flight.base = flight.route.plain or await flight.route.base(key)
                sampled = await self._post(request, flight, key)
            except TryAgain as fault:
                if flight.aborted.is_set():
                    return nothing_sampled(request)
                failures += 1
                wrong += isinstance(fault, WrongAnswer)
                await self._after(fault, request, flight, key, failures, last=wrong >= MOST_WRONG)
                if await _happens(flight.aborted, self._backoff.pause(failures)):
                    return nothing_sampled(request)
                self.counters.retries += 1
                flight.rid = f"{failures}~{request.rid}"
            else:
                if self.keys.states:
                    self.keys.worked(request.session_key)
                if not flight.route.plain:
                    flight.route.worked(flight.base)
                return sampled

    async def _after(
        self, fault: TryAgain, request: EngineRequest, flight: _Flight, key: str, failures: int, *, last: bool
    ) -> None:
        """Record a failed try. Raises EngineUnavailable if it was the last one."""
        logger.debug("request %s, try %d of %d: %s", flight.rid, failures, self._max_retries + 1, fault)
        flight.route.failed(flight.base, fault.status)
        if fault.lost:
            await self._workers.abort(flight.rid, at=flight.route.worker(flight.base))
        if fault.status != 429:
            self.keys.failed(request.session_key, key)
        if last or failures > self._max_retries:
            raise EngineUnavailable(
                f"{self.url} failed {failures} times on request {request.rid}, the last time with {fault}; "
                f"{self._advice(fault, flight)}",
                status=fault.status,
            ) from fault

    def _advice(self, fault: TryAgain, flight: _Flight) -> str:
        """Say where to look next: not at a router that does not answer."""
        known = [url for url in self._workers.known if url != self.url]
        listed = f"the workers that it listed last: {', '.join(known)}" if known else "its workers"
        if fault.status is None and flight.base == self.url:
            return f"see whether the router still runs, its log, and {listed}"
        if flight.base != self.url:
            return f"that was the worker {flight.base}, asked directly; look at its log, and at {listed}"
        return f"look at the router's and the workers' logs ({self.url}/workers lists them)"

    async def _post(self, request: EngineRequest, flight: _Flight, key: str) -> Sampled:
        began, rid = time.perf_counter(), flight.rid

        def read(answer: Posted) -> Sampled:
            if answer.status != 200:
                refuse(answer.status, words_of(answer.body), request)
            latency = time.perf_counter() - began
            return read_answer(answer.body, request, rid, vocab_size=self._vocab_size, latency=latency)

        try:
            return await self._posts.post(
                f"{flight.base}/generate",
                request_body(request, rid),
                {ROUTING_KEY: key},
                read=read,
                largest=largest_answer(request),
            )
        except NotConnected as fault:
            raise TryAgain(f"no connection: {fault}") from fault
        except ConnectionBroke as fault:
            raise TryAgain(f"connection lost: {fault}", lost=True) from fault

    async def _wait_until_ready(self) -> None:
        """Poll until ready: a router learns of its workers some seconds after it starts."""
        complaint = f"no sgl-router or SGLang server answers at {self.url}"
        try:
            async with asyncio.timeout(self._start_timeout):
                # Another process is starting; only asking again shows when it is ready.
                while complaint := await self._workers.complaint():
                    await asyncio.sleep(min(0.2, self._start_timeout / 4))
        except TimeoutError as late:
            raise EngineUnavailable(
                f"{complaint} (waited {self._start_timeout:g} s); check that the engines run, and that "
                "--sglang-router-ip and --sglang-router-port name the router's address"
            ) from late


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event; return False if `seconds` pass first."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
