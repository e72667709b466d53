"""Agent Lightning's own dashboard over the store of this process."""

from __future__ import annotations

import contextlib
import logging
import socket

from slime_agl.errors import ConfigError
from slime_agl.lightning._agl import LightningStore, LightningStoreServer, PythonServerLauncherArgs

HOST = "127.0.0.1"
HEALTH = "/v1/agl/health"

logger = logging.getLogger(__name__)


class Dashboard:
    """Serves the dashboard and the store's REST interface on loopback, on the event loop that owns the store.

    Keys of attempts are no part of the store, so it shows none.
    """

    def __init__(self, store: LightningStore, port: int) -> None:
        self.url = f"http://{HOST}:{port}"
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

    async def start(self) -> None:
        """Serve. Raises ConfigError when the port is taken."""
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
