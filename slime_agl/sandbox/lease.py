"""A sandbox of the pool, as its user holds it: every call crosses to the pool's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from slime_agl.errors import SandboxError
from slime_agl.sandbox.protocol import Content, ExecResult, Network, Process, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from slime_agl.sandbox.pool import Pool

T = TypeVar("T")


class Lease:
    """See `Sandbox`. It ends after `spec.ttl_seconds`, or when the pool ends it; later calls say why."""

    def __init__(self, pool: Pool, spec: SandboxSpec) -> None:
        self.spec = spec
        self.labels: Mapping[str, str] = dict(spec.labels)
        self._pool = pool
        self._entering: asyncio.Task[None] | None = None
        self._box: Sandbox | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._over = ""

    async def __aenter__(self) -> Self:
        try:
            await self._pool.on_loop(self._enter())
        except asyncio.CancelledError:
            await asyncio.shield(self._pool.on_loop(self._settled()))
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Goes on also if its caller is cancelled again.
        await asyncio.shield(self._pool.on_loop(self.end_on_loop("has ended")))

    @property
    def sandbox_id(self) -> str:
        return self._box.sandbox_id if self._box is not None else ""

    @property
    def endpoint(self) -> str:
        return self._live().endpoint

    def path(self, sandbox_path: str) -> str:
        return self._live().path(sandbox_path)

    async def exec(
        self,
        cmd: str,
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        check: bool = False,
        idempotent: bool = True,
    ) -> ExecResult:
        return await self.call(
            lambda box: box.exec(cmd, user=user, env=env, timeout=timeout, check=check, idempotent=idempotent)
        )

    async def start(
        self, cmd: str, *, user: str = "root", env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> LeasedProcess:
        return LeasedProcess(self, await self.call(lambda box: box.start(cmd, user=user, env=env, cwd=cwd)))

    async def write_file(self, sandbox_path: str, content: Content, *, user: str = "root") -> None:
        await self.call(lambda box: box.write_file(sandbox_path, content, user=user))

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        return await self.call(lambda box: box.read_file(sandbox_path, user=user))

    async def upload(self, host_path: Path, sandbox_path: str) -> None:
        await self.call(lambda box: box.upload(host_path, sandbox_path))

    async def set_network(self, network: Network) -> None:
        await self.call(lambda box: box.set_network(network))

    async def is_alive(self) -> bool:
        try:
            return await self.call(lambda box: box.is_alive())
        except SandboxError:
            return False

    async def end_on_loop(self, why: str) -> None:
        """End the sandbox, whatever its user is doing with it. Idempotent. On the pool's loop."""
        self._over = self._over or why
        if self._entering is not None and not self._entering.done() and self._entering is not asyncio.current_task():
            self._entering.cancel()
            await asyncio.wait([self._entering])
        if self._ending is None and self._box is not None:
            self._ending = asyncio.ensure_future(self._end(self._box))
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _enter(self) -> None:
        self._entering = asyncio.current_task()
        if self._over:
            raise SandboxError(f"this sandbox {self._over}; a lease is entered once")
        try:
            self._box = await self._pool.acquire(self)
        except asyncio.CancelledError:
            if self._over:  # it is not our user who was cancelled
                raise SandboxError(f"this sandbox {self._over}") from None
            raise
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.spec.ttl_seconds, self._expire)

    async def _settled(self) -> None:
        """Wait until a cancelled creation has cleaned up, or end what it created just then."""
        if self._entering is not None:
            await asyncio.wait([self._entering])
        await self.end_on_loop("was cancelled")

    async def _end(self, box: Sandbox) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._pool.release(self, box)

    def _expire(self) -> None:
        self._pool.expired()
        self._over = f"exceeded {self.spec.ttl_seconds:g} s (agl.sandbox.ttl_seconds)"
        assert self._box is not None
        self._ending = asyncio.ensure_future(self._end(self._box))

    def _live(self) -> Sandbox:
        if self._over or self._box is None:
            raise SandboxError(f"sandbox {self.sandbox_id} {self._over or 'is not entered yet'}")
        return self._box

    async def call(self, make: Callable[[Sandbox], Awaitable[T]]) -> T:
        """Await something of the sandbox, on the pool's loop.

        Raises:
            SandboxError: it is over, and why.
        """

        async def call() -> T:
            box = self._live()
            try:
                return await make(box)
            except SandboxError as error:
                if self._over:
                    raise SandboxError(f"sandbox {self.sandbox_id} {self._over}") from error
                raise

        return await self._pool.on_loop(call())


class LeasedProcess:
    """See `Process`."""

    def __init__(self, lease: Lease, process: Process) -> None:
        self._lease, self._process = lease, process

    async def wait(self, timeout: float | None = None) -> int | None:
        return await self._lease.call(lambda _: self._process.wait(timeout))

    async def output(self, most_bytes: int = 65536) -> str:
        return await self._lease.call(lambda _: self._process.output(most_bytes))

    async def kill(self) -> None:
        await self._lease.call(lambda _: self._process.kill())
