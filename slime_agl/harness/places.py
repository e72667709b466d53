"""The sandboxes of a harness: a pool that starts with the first execution."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable

from slime_agl.config.sandbox import SandboxConfig
from slime_agl.harness.install import Installer
from slime_agl.sandbox.backends import open_backend
from slime_agl.sandbox.lease import Lease
from slime_agl.sandbox.pool import Pool
from slime_agl.sandbox.protocol import SandboxSpec
from slime_agl.sandbox.reach import Serving

LOCAL = "local"
# Backends whose sandboxes see this machine's programs; the others start from an image.
ON_THIS_MACHINE = frozenset({LOCAL, "bwrap"})


class Places:
    """Sandboxes and installed programs, which all executions of a process share; copies of an agent share them too.

    serving: the gateway of this process, once it runs, for backends that it can serve directly.
    run: names this process in the labels of sandboxes.
    """

    def __init__(self, config: SandboxConfig, serving: Callable[[], Serving | None] = lambda: None) -> None:
        self.name = config.backend
        self._config, self._serving = config, serving
        self._pool: Pool | None = None
        self._starting = asyncio.Lock()
        self.installer = Installer()
        self.run = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"

    def __deepcopy__(self, memo: object) -> Places:
        return self

    @property
    def has_images(self) -> bool:
        return self.name not in ON_THIS_MACHINE

    async def start(self) -> None:
        """Start the pool, which ends what dead processes left. Idempotent.

        Raises:
            ConfigError: there is no such backend. SandboxError: this machine cannot run it.
        """
        async with self._starting:
            if self._pool is None:
                pool = Pool(self._config, open_backend(self._config, self._serving()))
                await pool.start()
                self._pool = pool

    async def stop(self) -> None:
        """End all sandboxes of this process. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.stop()

    def sandbox(self, spec: SandboxSpec) -> Lease:
        """Return a sandbox that `async with` creates; after `start`."""
        assert self._pool is not None, "the places are not started"
        return self._pool.sandbox(spec)

    def metrics(self) -> dict[str, float]:
        """Counts of the pool since its start."""
        return {} if self._pool is None else {f"sandbox/{name}": value for name, value in self._pool.metrics().items()}
