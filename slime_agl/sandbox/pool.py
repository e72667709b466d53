"""The sandboxes of this process: how many, how fast, how long, and none left over.

They live on an event loop and in threads of the pool's own, so that a blocking agent stalls none, and that those which
die with the thread that started them do not die early. Call from any event loop or thread's loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Coroutine, Mapping
from contextvars import Context
from typing import Any, TypeVar

from slime_agl.config.sandbox import SandboxConfig
from slime_agl.errors import SandboxError, SandboxExhausted
from slime_agl.loops import LoopThread
from slime_agl.sandbox.defaults import completed
from slime_agl.sandbox.lease import Lease
from slime_agl.sandbox.protocol import Backend, Sandbox, SandboxSpec
from slime_agl.sandbox.warm import Warm

logger = logging.getLogger(__name__)

T = TypeVar("T")
PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 30.0


class Pool:
    """From `start` to `stop`. backend: becomes the pool's own, and is used on the pool's loop only."""

    def __init__(self, config: SandboxConfig, backend: Backend) -> None:
        self._config, self._backend = config, backend
        self._thread: LoopThread | None = None
        self._slots = asyncio.Semaphore(config.concurrency)
        self._warm = Warm(config.warm, self._new)
        self._leases: set[Lease] = set()
        self._next_creation = 0.0
        self._counts = dict.fromkeys(("created", "retried", "failed", "expired", "reaped"), 0)
        self._seconds = 0.0
        self._alive = 0

    async def start(self) -> None:
        """Start the loop, and end what dead drivers left.

        Raises:
            SandboxError: this machine cannot run such sandboxes.
        """
        self._thread = LoopThread("agl-sandboxes")
        self._thread.start()
        try:
            await self.on_loop(self._check_and_reap())
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all sandboxes. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.shield(asyncio.wrap_future(thread.submit(self._close())))
            thread.stop()

    def sandbox(self, spec: SandboxSpec) -> Lease:
        """Return a sandbox that `async with` creates or takes from the warm ones. The configuration fills what the
        spec leaves open."""
        return Lease(self, completed(spec, self._config))

    async def end(self, labels: Mapping[str, str]) -> int:
        """End the sandboxes of this process with these labels, whoever holds them; return how many."""
        return await self.on_loop(self._end(labels))

    def metrics(self) -> dict[str, float]:
        """Counts since the start; alive: sandboxes in use; warm: those ready; create_seconds: the mean of created."""
        counts: dict[str, float] = {**self._counts, "warm_used": self._warm.used, "warm": self._warm.ready}
        seconds = self._seconds / max(1, self._counts["created"])
        return {**counts, "alive": self._alive, "create_seconds": seconds}

    async def on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the pool's loop, from any loop. Cancellation goes there too."""
        if self._thread is None:
            coroutine.close()
            raise SandboxError("the pool of sandboxes is not running")
        # In an empty context: what the pool starts is not its caller's attempt's, with which it would be ended.
        return await asyncio.wrap_future(Context().run(self._thread.submit, coroutine))

    async def acquire(self, lease: Lease) -> Sandbox:
        """Create the sandbox of a lease, once there is room for it. On the pool's loop."""
        self._leases.add(lease)
        try:
            await self._slots.acquire()
            try:
                box = await self._warm.take(lease.spec) or await self._new(lease.spec)
            except BaseException:
                self._slots.release()
                raise
            self._alive += 1
            return box
        except BaseException:
            self._leases.discard(lease)
            raise

    async def release(self, lease: Lease, box: Sandbox) -> None:
        """End the sandbox of a lease. On the pool's loop."""
        try:
            await box.__aexit__(None, None, None)
        finally:
            self._alive -= 1
            self._slots.release()
            self._leases.discard(lease)

    def expired(self) -> None:
        self._counts["expired"] += 1

    async def _new(self, spec: SandboxSpec) -> Sandbox:
        """Create a sandbox, again after a failure of the infrastructure. Raises SandboxExhausted."""
        for failures in range(self._config.retries + 1):
            await self._turn()
            begun = time.monotonic()
            try:
                box = await self._backend.sandbox(spec).__aenter__()
            except SandboxError as error:
                if failures == self._config.retries:
                    self._counts["failed"] += 1
                    raise SandboxExhausted(f"no sandbox after {failures + 1} attempts: {error}") from error
                self._counts["retried"] += 1
                logger.warning("a sandbox could not be created, trying again: %s", error)
                await asyncio.sleep(min(MOST_PAUSE_SECONDS, PAUSE_SECONDS * 2**failures) * random.uniform(0.5, 1.5))
                continue
            self._counts["created"] += 1
            self._seconds += time.monotonic() - begun
            return box
        raise AssertionError("unreachable")

    async def _turn(self) -> None:
        """Wait for the turn that the rate of creation gives."""
        rate, now = self._config.create_per_second, asyncio.get_running_loop().time()
        if rate is not None:
            at = max(now, self._next_creation)
            self._next_creation = at + 1 / rate
            await asyncio.sleep(at - now)

    async def _check_and_reap(self) -> None:
        check = getattr(self._backend, "check", None)
        if check is not None:
            await asyncio.get_running_loop().run_in_executor(None, check)
        self._counts["reaped"] = await self._backend.reap({})
        if self._counts["reaped"]:
            logger.warning("%d sandboxes of drivers that died were ended", self._counts["reaped"])

    async def _end(self, labels: Mapping[str, str]) -> int:
        chosen = [lease for lease in self._leases if labels.items() <= lease.labels.items()]
        await asyncio.gather(*(lease.end_on_loop(f"was ended with {dict(labels)}") for lease in chosen))
        return len(chosen)

    async def _close(self) -> None:
        await self._warm.close()
        await self._end({})
        await self._backend.close()
