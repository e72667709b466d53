"""SGLang's HTTP interface over a Backend.

Endpoints, JSON and error bodies are those of SGLang 0.5, as far as slime, the SGLang router and this package use them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TypedDict, Unpack

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from slime_agl.errors import EngineError, EngineRejected, SlimeAglError, closest
from slime_agl.local.engine.backend import PAUSES, Backend, Generated, GenerateRequest
from slime_agl.local.engine.wire import answer_json, error_json
from slime_agl.loops import LoopThread

logger = logging.getLogger(__name__)
_http_logger = logging.getLogger(f"{__name__}.http")
# At start the router probes every worker for HTTP/2; aiohttp would log its refusal as an error with a traceback.
_http_logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], BadHttpMessage)))

_LARGEST_BODY = 1 << 30

JsonObject = dict[str, object]


class Options(TypedDict, total=False):
    """Keyword arguments of `EngineServer`.

    host, port: where to listen; port 0, the default, takes a free one. name: of the served model.
    pages: further GET endpoints; each function returns the JSON answer.
    on_control: called with path and body of each call that changes state, before it takes effect.
    shutdown_seconds: time that `stop` gives open requests before it closes their connections.
    """

    host: str
    port: int
    name: str
    pages: Mapping[str, Callable[[], JsonObject]]
    on_control: Callable[[str, JsonObject], None]
    shutdown_seconds: float


class EngineServer:
    """A backend and the server in front of it, on the running event loop.

    `url` is known once started. `start` unwinds itself on failure; `stop` is idempotent.
    """

    def __init__(self, backend: Backend, **options: Unpack[Options]) -> None:
        self._backend = backend
        self._host = options.get("host", "127.0.0.1")
        self._port = options.get("port", 0)
        self._name = options.get("name", "default")
        self._pages = options.get("pages", {})
        self._on_control = options.get("on_control", lambda path, body: None)
        self._shutdown_seconds = options.get("shutdown_seconds", 2.0)
        self._runner: web.AppRunner | None = None
        self._in_flight: set[str] = set()

    @property
    def url(self) -> str:
        """Address for clients on this machine. Raises RuntimeError before `start`."""
        host = "127.0.0.1" if self._host == "0.0.0.0" else self._host
        return f"http://{host}:{self._bound_port}"

    @property
    def backend(self) -> Backend:
        return self._backend

    @property
    def _bound_port(self) -> int:
        if self._runner is None:
            raise RuntimeError("the engine server has no address before it is started")
        return self._runner.addresses[0][1]

    async def start(self) -> EngineServer:
        """Start the backend and listen. Raises OSError if the port is taken."""
        self._backend.start()
        runner = web.AppRunner(
            self._application(),
            access_log=None,
            handler_cancellation=True,
            logger=_http_logger,
            shutdown_timeout=self._shutdown_seconds,
        )
        try:
            await runner.setup()
            await web.TCPSite(runner, self._host, self._port).start()
        except BaseException:
            await runner.cleanup()
            self._backend.close()
            raise
        self._runner = runner
        return self

    async def stop(self) -> None:
        """Abort requests in flight, send their answers, close."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        await asyncio.to_thread(self._backend.close)
        await runner.cleanup()

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=_LARGEST_BODY, middlewares=(_errors_as_json,))
        app.router.add_post("/generate", self._generate)
        for path in ("/health", "/health_generate"):
            app.router.add_get(path, self._health)
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self._server_info)
        for path in ("/model_info", "/get_model_info"):
            app.router.add_get(path, self._model_info)
        app.router.add_get("/get_weight_version", self._weight_version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/get_load", self._get_load)
        app.router.add_route("*", "/flush_cache", self._flush_cache)
        app.router.add_post("/abort_request", self._abort_request)
        app.router.add_post("/pause_generation", self._pause)
        app.router.add_post("/continue_generation", self._continue)
        app.router.add_post("/update_weights_from_disk", self._update_weights)
        for path, make in self._pages.items():
            app.router.add_get(path, _page(make))
        return app

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        started = time.monotonic()
        request = self._backend.read(await _json_body(http), dict(http.headers))
        if request.rid in self._in_flight:
            raise EngineRejected(f"rid {request.rid!r} is already in flight; each request needs its own", status=400)
        self._in_flight.add(request.rid)
        try:
            if request.stream:
                return await self._stream(http, request, started)
            async with aclosing(self._updates(request)) as updates:
                last = [update async for update in updates][-1]
            return web.json_response(answer_json(request, last, time.monotonic() - started))
        finally:
            self._in_flight.discard(request.rid)

    async def _updates(self, request: GenerateRequest) -> AsyncGenerator[Generated, None]:
        """Submit and yield updates until finished. Closing early, as when the client disconnects, drops the request."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Generated | EngineError] = asyncio.Queue()

        def deliver(update: Generated | EngineError) -> None:
            with suppress(RuntimeError):  # the loop is closed, so there is no client left
                loop.call_soon_threadsafe(queue.put_nowait, update)

        self._backend.submit(request, deliver)
        ended = False
        try:
            while not ended:
                update = await queue.get()
                ended = isinstance(update, EngineError) or update.finish is not None
                if isinstance(update, EngineError):
                    raise update
                yield update
        finally:
            if not ended:
                self._backend.drop(request.rid)

    async def _stream(self, http: web.Request, request: GenerateRequest, started: float) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(http)
        try:
            async with aclosing(self._updates(request)) as updates:
                async for update in updates:
                    await _send_event(response, json.dumps(answer_json(request, update, time.monotonic() - started)))
        except EngineError as error:
            # The status line is already sent, so the error is sent as an event.
            await _send_event(response, json.dumps(error_json(str(error))))
        await _send_event(response, "[DONE]")
        await response.write_eof()
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._backend.healthy else 503)

    async def _server_info(self, _: web.Request) -> web.Response:
        info, load = self._backend.info, self._backend.load()
        return web.json_response(
            {
                "model_path": info.model_path,
                "tokenizer_path": info.model_path,
                "served_model_name": self._name,
                "host": self._host,
                "port": self._bound_port,
                "context_length": info.context_length,
                "max_total_num_tokens": info.context_length * info.max_running,
                "max_running_requests": info.max_running,
                "tp_size": 1,
                "dp_size": 1,
                "pp_size": 1,
                "ep_size": 1,
                "disaggregation_mode": "null",
                "enable_memory_saver": False,
                "weight_version": self._backend.weight_version,
                "version": "slime_agl-local",
                "internal_states": [{"num_running_reqs": load.running, "num_waiting_reqs": load.waiting}],
            }
        )

    async def _model_info(self, _: web.Request) -> web.Response:
        info = self._backend.info
        return web.json_response(
            {
                "model_path": info.model_path,
                "tokenizer_path": info.model_path,
                "is_generation": True,
                "weight_version": self._backend.weight_version,
                "vocab_size": info.vocab_size,
            }
        )

    async def _weight_version(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self._backend.weight_version})

    async def _models(self, _: web.Request) -> web.Response:
        info = self._backend.info
        model = {
            "id": self._name,
            "object": "model",
            "owned_by": "slime_agl",
            "root": info.model_path,
            "max_model_len": info.context_length,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _loads(self, _: web.Request) -> web.Response:
        load = self._backend.load()
        running, waiting = load.running, load.waiting
        rank = {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting}
        rank |= dict.fromkeys(("num_reqs", "num_total_reqs"), running + waiting)  # names in older and newer versions
        total = {"total_running_reqs": running, "total_waiting_reqs": waiting, "total_reqs": running + waiting}
        return web.json_response({"timestamp": time.time(), "dp_rank_count": 1, "loads": [rank], "aggregate": total})

    async def _get_load(self, _: web.Request) -> web.Response:
        load = self._backend.load()
        counts = {"num_reqs": load.running + load.waiting, "num_waiting_reqs": load.waiting}
        return web.json_response([{"dp_rank": 0, **counts}])

    async def _control_body(self, http: web.Request) -> JsonObject:
        body = await _json_body(http)
        if not isinstance(body, dict):
            raise EngineRejected(f"the request body is a JSON {type(body).__name__}, it must be an object", status=400)
        self._on_control(http.path, body)
        return body

    async def _flush_cache(self, http: web.Request) -> web.Response:
        await self._control_body(http)
        if await asyncio.to_thread(self._backend.flush_cache):
            return web.Response(text="Cache flushed.\n")
        running = self._backend.load().running
        message = f"Cache not flushed: {running} requests are being decoded. Pause or abort them first.\n"
        return web.Response(text=message, status=400)

    async def _abort_request(self, http: web.Request) -> web.Response:
        body = await self._control_body(http)
        rid = body.get("rid")
        if not body.get("abort_all") and not isinstance(rid, str):
            raise EngineRejected("abort_request needs rid (a string) or abort_all: true", status=400)
        self._backend.abort(rid if isinstance(rid, str) and not body.get("abort_all") else None)
        return web.Response(status=200)

    async def _pause(self, http: web.Request) -> web.Response:
        kind = (await self._control_body(http)).get("mode", "abort")
        if not isinstance(kind, str) or kind not in PAUSES:
            known = ", ".join(PAUSES)
            raise EngineRejected(f"mode is {kind!r}, known are {known}.{closest(str(kind), PAUSES)}", status=400)
        await asyncio.to_thread(self._backend.pause, kind)
        return web.json_response({"status": "ok", "message": f"Generation paused ({kind})."})

    async def _continue(self, http: web.Request) -> web.Response:
        await self._control_body(http)
        self._backend.resume()
        return web.json_response({"status": "ok", "message": "Generation continued."})

    async def _update_weights(self, http: web.Request) -> web.Response:
        body = await self._control_body(http)
        path, version = body.get("model_path"), body.get("weight_version")
        if not isinstance(path, str):
            raise EngineRejected("update_weights_from_disk needs model_path, a directory", status=400)
        if body.get("abort_all_requests"):
            self._backend.abort(None)
        version = _next_version(self._backend.weight_version) if version is None else str(version)
        try:
            await asyncio.to_thread(self._backend.update_weights, path, version)
        except SlimeAglError as error:
            return web.json_response({"success": False, "message": str(error), "num_paused_requests": 0}, status=400)
        message = f"Weights loaded from {path} as version {version}."
        return web.json_response({"success": True, "message": message, "num_paused_requests": 0})


@asynccontextmanager
async def serve(backend: Backend, **options: Unpack[Options]) -> AsyncIterator[EngineServer]:
    """Run an EngineServer on this event loop while the context lasts."""
    server = EngineServer(backend, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class EngineThread:
    """An EngineServer with its own thread and event loop, for blocking callers. A context manager."""

    def __init__(self, backend: Backend, **options: Unpack[Options]) -> None:
        self._server = EngineServer(backend, **options)
        self._thread = LoopThread("engine-server")
        self._running = False

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> EngineThread:
        """Start the server; return once it listens. Raises as `EngineServer.start` does."""
        self._thread.start()
        try:
            self._thread.run(self._server.start())
        except BaseException:
            self._thread.stop()
            raise
        self._running = True
        return self

    def stop(self) -> None:
        """Stop the server and wait for the thread. Idempotent."""
        if self._running:
            self._running = False
            self._thread.run(self._close())
            self._thread.stop()

    async def _close(self) -> None:
        await self._server.stop()
        # Closing the loop would not wait for the helper threads.
        await asyncio.get_running_loop().shutdown_default_executor()

    def __enter__(self) -> EngineThread:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


async def _json_body(http: web.Request) -> object:
    """Return the JSON body, {} if empty. Raises EngineRejected if it is not JSON."""
    text = await http.text()
    try:
        return json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise EngineRejected(f"the request body is not JSON: {error}", status=400) from error


def _page(make: Callable[[], JsonObject]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.json_response(make())

    return page


async def _send_event(response: web.StreamResponse, data: str) -> None:
    await response.write(f"data: {data}\n\n".encode())


def _next_version(version: str) -> str:
    return str(int(version) + 1) if version.isdecimal() else "1"


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except EngineError as error:
        if error.status == 0 and request.transport is not None:
            request.transport.abort()
        return web.json_response(error_json(str(error)), status=error.status or 500)
    except web.HTTPException as error:
        return web.json_response(error_json(f"{request.method} {request.path}: {error.reason}"), status=error.status)
    except Exception as error:  # boundary of the server: a failed request must not look like a dead engine
        logger.exception("%s %s failed", request.method, request.path)
        return web.json_response(error_json(f"{type(error).__name__}: {error}"), status=500)
