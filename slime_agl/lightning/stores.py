"""The stores of external runners: one that runs elsewhere, or one that is served from here."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from slime_agl.config.store import LOOPBACK, StoreConfig
from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.lightning._agl import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    LightningStoreServer,
    PythonServerLauncherArgs,
)
from slime_agl.lightning.store import ReleasingStore, span_bytes

HEALTH = "/v1/agl/health"
TRACES = "/v1/traces"

Scope = dict[str, Any]
App = Callable[[Scope, Callable[..., Awaitable], Callable[..., Awaitable]], Awaitable[None]]

logger = logging.getLogger(__name__)


class ExternalStore(Protocol):
    """A store that other processes use, too.

    store: to call, on the event loop that called `open`. where: names it in messages.
    """

    store: LightningStore
    where: str

    async def open(self) -> None:
        """Connect, or serve.

        Raises:
            ConfigError: no store answers at the URL; the address cannot be bound.
        """
        ...

    async def forget(self, rollout_ids: Iterable[str]) -> None:
        """Forget finished rollouts, if the store can."""
        ...

    async def close(self) -> None: ...


def make_store(config: StoreConfig) -> ExternalStore:
    if config.url is not None:
        return ElsewhereStore(config.url, config.key)
    return ServedStore(*config.address, config.key)


class ElsewhereStore:
    """A store behind a URL, such as a Trainer's. It keeps what it was given: its interface has no removal."""

    def __init__(self, url: str, key: str | None) -> None:
        self.where = url
        self._client = _KeyedClient(url, key)
        self.store: LightningStore = self._client

    async def open(self) -> None:
        try:
            await self._client.statistics()
        except Exception as error:  # the client raises whatever its HTTP library raises
            await self._client.close()
            if getattr(error, "status", None) in (401, 403):
                raise ConfigError(
                    f"the store at {self.where} does not take this key ({type(error).__name__}: {error}); set "
                    "agl.store.key to the one that it was served with"
                ) from error
            raise ConfigError(
                f"agl.store.url is {self.where}, where no Agent Lightning store answers "
                f"({type(error).__name__}: {error}); start it first, or correct the address"
            ) from error

    async def forget(self, rollout_ids: Iterable[str]) -> None:
        return None

    async def close(self) -> None:
        await self._client.close()


class _KeyedClient(LightningStoreClient):
    """Agent Lightning's client, with a key in every request."""

    def __init__(self, url: str, key: str | None) -> None:
        super().__init__(url)
        self._key = key

    async def _get_session(self) -> Any:
        session = await super()._get_session()
        if self._key is not None:
            session.headers.setdefault("Authorization", f"Bearer {self._key}")
        return session


class ServedStore:
    """A store of this process, served on the event loop that opens it. store: by default one that can forget."""

    def __init__(self, host: str, port: int, key: str | None, store: LightningStore | None = None) -> None:
        self.where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._host, self._port, self._key = host, port, key
        self.store: LightningStore = _ScanningStore() if store is None else store
        self._server: LightningStoreServer | None = None

    async def open(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with contextlib.closing(socket.socket(family)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, self._port))
            except OSError as error:
                raise ConfigError(
                    f"agl.store.serve: {self._host}:{self._port} cannot be bound ({error.strerror}); name a free port "
                    "of an address of this machine"
                ) from error
        server = LightningStoreServer(
            self.store,
            launcher_args=PythonServerLauncherArgs(
                host=self._host,
                access_host="127.0.0.1" if self._host == "0.0.0.0" else self._host,
                port=self._port,
                launch_mode="asyncio",
                healthcheck_url=HEALTH,
                log_level=logging.WARNING,
            ),
        )
        assert server.app is not None
        server.app.add_middleware(StoreGuard, key=self._key, host=self._host, port=self._port)
        await server.start()
        self._server = server
        if not isinstance(self.store, _ScanningStore):
            return
        logger.info(
            "Agent Lightning's store is served at %s; start runners with AGL_CURRENT_ROLE=runner "
            "AGL_SERVER_HOST=%sHOST AGL_SERVER_PORT=%d",
            self.where,
            "agl:KEY@" if self._key else "",
            self._port,
        )

    async def forget(self, rollout_ids: Iterable[str]) -> None:
        store = self.store
        if not isinstance(store, ReleasingStore):
            return
        for rollout_id in rollout_ids:
            with contextlib.suppress(SlimeAglError):  # a runner that came back late holds it
                await store.forget([rollout_id])

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop()
            self._server = None


class _ScanningStore(ReleasingStore):
    """With Agent Lightning's own scan for attempts that are too late: its runners are not ours."""

    def __init__(self) -> None:
        InMemoryLightningStore.__init__(self, thread_safe=False, span_size_estimator=span_bytes)


class StoreGuard:
    """ASGI middleware before a served store: demands its key, and refuses what a web page made a browser send.

    key: as `Authorization: Bearer KEY`, or as the password of HTTP's Basic scheme, which clients send for an address
    of the form `http://agl:KEY@host:port`. None on loopback only, where the Host header must then name this machine.
    """

    def __init__(self, app: App, *, key: str | None, host: str, port: int) -> None:
        self._app, self._key = app, key
        self._hosts = {f"{f'[{name}]' if ':' in name else name}:{port}".encode() for name in (*LOOPBACK, host)}

    async def __call__(self, scope: Scope, receive: Callable[..., Awaitable], send: Callable[..., Awaitable]) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if b"origin" in headers or headers.get(b"sec-fetch-site", b"none") != b"none":
            await _answer(send, 403, b"requests of web pages are not served")
        elif self._key is None and headers.get(b"host", b"").lower() not in self._hosts:
            await _answer(send, 403, b"requests to another host are not served")
        elif self._key is not None and scope["path"] != HEALTH and not self._is_key(_sent(headers)):
            await _answer(send, 401, b"the key of the store is missing or wrong; see agl.store.key")
        else:
            await self._app(scope, receive, send)

    def _is_key(self, sent: str) -> bool:
        return hmac.compare_digest(sent.encode("utf-8", "replace"), (self._key or "").encode())


def _sent(headers: dict[bytes, bytes]) -> str:
    scheme, _, value = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""


async def _answer(send: Callable[..., Awaitable], status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
