"""Agent Lightning's own dashboard over the store of this process."""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from slime_agl.errors import ConfigError
from slime_agl.lightning._agl import LightningStore, LightningStoreServer, PythonServerLauncherArgs

HOST = "127.0.0.1"
HEALTH = "/v1/agl/health"

Scope = dict[str, Any]
Channel = Callable[..., Awaitable]
App = Callable[[Scope, Channel, Channel], Awaitable[None]]

logger = logging.getLogger(__name__)


class Dashboard:
    """Serves the dashboard and the store's REST interface on loopback, on the event loop that owns the store.

    Answers only requests with its token, which `url` contains, and none from other web pages. The store has no keys of
    attempts, so none are shown.
    """

    def __init__(self, store: LightningStore, port: int) -> None:
        token = secrets.token_urlsafe(24)
        self.url = f"http://{HOST}:{port}/?token={token}"
        self._port = port
        self._server = LightningStoreServer(
            store,
            launcher_args=PythonServerLauncherArgs(
                host=HOST,
                access_host=HOST,
                port=port,
                launch_mode="asyncio",
                healthcheck_url=HEALTH,
                log_level=logging.WARNING,
            ),
        )
        assert self._server.app is not None
        self._server.app.add_middleware(TokenGuard, token=token, port=port)

    async def start(self) -> None:
        """Start serving. Raises ConfigError if the port is taken."""
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self._port))
            except OSError as error:
                raise ConfigError(
                    f"agl.dashboard_port: {HOST}:{self._port} cannot be bound ({error.strerror}); name a free port"
                ) from error
        await self._server.start()
        logger.info("Agent Lightning's dashboard is at %s", self.url)

    async def stop(self) -> None:
        await self._server.stop()


class TokenGuard:
    """ASGI middleware that requires the token: as `Authorization: Bearer`, as query parameter `token`, or in the cookie
    that such a URL sets. Requests for another host or from another web page are refused.

    The health check needs no token: the server sends it to itself.
    """

    def __init__(self, app: App, *, token: str, port: int) -> None:
        self._app, self._token = app, token.encode()
        self._hosts = {f"{name}:{port}".encode() for name in (HOST, "localhost", "[::1]")}
        # Cookies are shared between ports, so each dashboard of a machine needs a name of its own.
        self._cookie = f"slime_agl_dashboard_{port}"

    async def __call__(self, scope: Scope, receive: Channel, send: Channel) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not self._is_own(headers):
            await _answer(send, 403, b"requests of other web pages, or to another host, are not served")
        elif self._is(parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]):
            cookie = f"{self._cookie}={self._token.decode()}; Path=/; HttpOnly; SameSite=Strict"
            await _answer(send, 303, b"", (b"location", b"/"), (b"set-cookie", cookie.encode()))
        elif scope["path"] == HEALTH or self._is(self._sent_token(headers)):
            await self._app(scope, receive, send)
        else:
            await _answer(send, 401, b"open the dashboard by the address that the log shows; it holds a token")

    def _is_own(self, headers: dict[bytes, bytes]) -> bool:
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        site = headers.get(b"sec-fetch-site", b"none")
        return host.lower() in self._hosts and origin in (None, b"http://" + host) and site in (b"none", b"same-origin")

    def _sent_token(self, headers: dict[bytes, bytes]) -> str:
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return ""
        return cookies[self._cookie].value if self._cookie in cookies else ""

    def _is(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token)


async def _answer(send: Channel, status: int, text: bytes, *headers: tuple[bytes, bytes]) -> None:
    plain = (b"content-type", b"text/plain; charset=utf-8")
    size = (b"content-length", str(len(text)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [plain, size, *headers]})
    await send({"type": "http.response.body", "body": text})
