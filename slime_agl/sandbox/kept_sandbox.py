"""The protocol's calls, by way of a keeper."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from slime_agl.errors import SandboxError
from slime_agl.sandbox import trees
from slime_agl.sandbox.channel import Answer, Channel
from slime_agl.sandbox.ending import Ending
from slime_agl.sandbox.life import Life
from slime_agl.sandbox.protocol import Content, ExecResult, Network, SandboxSpec, absolute, checked
from slime_agl.sandbox.reach import address_of
from slime_agl.sandbox.spawning import in_thread

if TYPE_CHECKING:
    from slime_agl.sandbox.kept import KeptBackend

READ_BYTES = 64 << 20
# Status of a command that was killed at its timeout, as timeout(1) has it.
TIMED_OUT = 124
KILL_SECONDS = 20.0


class KeptProcess:
    """A detached command."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel, self._number = channel, number
        self._status = channel.job(number)

    async def wait(self, timeout: float | None = None) -> int | None:
        try:
            return await asyncio.wait_for(asyncio.shield(self._status), timeout)
        except TimeoutError:
            return None

    async def output(self, most_bytes: int = 65536) -> str:
        answer = await self._channel.call("output", job=self._number, most=most_bytes)
        return answer.out.decode(errors="replace")

    async def kill(self) -> None:
        if not self._channel.ended.done():
            await self._channel.call("kill", job=self._number)


class KeptSandbox(Ending):
    """Owned by the event loop that entered it. `user` is ignored: everything inside runs as one user."""

    def __init__(self, spec: SandboxSpec, backend: KeptBackend) -> None:
        super().__init__()
        self.labels: Mapping[str, str] = dict(spec.labels)
        self._spec, self._backend = spec, backend
        self._network: Network = spec.network
        self._life = Life(spec, backend)
        self._listening: socket.socket | None = None
        self._endpoint = ""

    async def __aenter__(self) -> Self:
        self._backend.open.add(self)
        seconds = self._backend.start_seconds
        try:
            await asyncio.wait_for(self._create(), seconds)
        except TimeoutError as error:
            await self.end()
            raise SandboxError(
                f"a {self._backend.name} sandbox was not ready after {seconds:g} s (agl.sandbox.start_seconds)"
            ) from error
        except BaseException:
            await self.end()
            raise
        return self

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def path(self, sandbox_path: str) -> str:
        return self._backend.path(self._life.root, absolute(sandbox_path))

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
        channel = self._running()
        number, answer = channel.send("run", **self._command(cmd, env, None), detached=False)
        status: int | None = None
        try:
            done = await asyncio.wait_for(asyncio.shield(answer), timeout)
        except TimeoutError:
            done, status = await self._kill(channel, number, answer), TIMED_OUT
        except asyncio.CancelledError:
            if not channel.ended.done():
                channel.send("kill", job=number)
            raise
        status = done.status if status is None else status
        out, err = done.out.decode(errors="replace"), done.err.decode(errors="replace")
        if check and status:
            raise self._failed(cmd, status, out, err)
        return status, out, err

    async def start(
        self, cmd: str, *, user: str = "root", env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> KeptProcess:
        channel = self._running()
        number, answer = channel.send("run", **self._command(cmd, env, cwd), detached=True)
        process = KeptProcess(channel, number)
        await answer
        return process

    async def write_file(self, sandbox_path: str, content: Content, *, user: str = "root") -> None:
        await self._put(sandbox_path, lambda out: trees.pack_content(out, content))

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        answer = await self._running().call("read", path=absolute(sandbox_path))
        return "" if answer.fd < 0 else await self._blocking(_read_text, answer.fd)

    async def upload(self, host_path: Path, sandbox_path: str) -> None:
        await self._put(sandbox_path, lambda out: trees.pack_tree(out, host_path))

    async def set_network(self, network: Network) -> None:
        channel = self._running()
        self._backend.check_network(self._network, network)
        await self._unreach()
        self._network = network
        await self._reach(channel)

    async def adopt(self, spec: SandboxSpec) -> None:
        """Become the sandbox of a spec that differs in labels, environment, network and endpoint only.

        Raises:
            SandboxError: it has ended.
        """
        channel = self._running()
        if channel.ended.done():
            raise SandboxError(f"sandbox {self.sandbox_id} has ended")
        self._spec, self.labels, self._network = spec, dict(spec.labels), spec.network
        await self._blocking(self._backend.home.label, self._life.root.parent, spec.labels)
        await self._reach(channel)

    async def is_alive(self) -> bool:
        channel = self._life.channel
        return channel is not None and not channel.ended.done() and self._ending is None

    async def _create(self) -> None:
        channel = await self._life.begin()
        self.sandbox_id = self._life.root.parent.name
        await self._reach(channel)

    async def _end(self) -> None:
        try:
            await self._unreach()
        finally:
            await self._life.end()
            self._backend.open.discard(self)

    async def _reach(self, channel: Channel) -> None:
        """Make the gateway reachable from inside, at the port that it has here where that is possible."""
        self._endpoint = endpoint = self._spec.endpoint if self._network != "none" else ""
        if not endpoint or self._network != "gateway" or not self._backend.isolates:
            return
        port = address_of(endpoint)[1]
        answer = await channel.call("listen", port=port if port >= 1024 else 0)
        listening = socket.socket(fileno=answer.fd)
        if listening.family != socket.AF_INET:
            listening.close()
            raise SandboxError(f"sandbox {self.sandbox_id}: something in it took over its keeper")
        self._listening = listening
        self._endpoint = await self._backend.reach.serve(listening, endpoint)

    async def _unreach(self) -> None:
        listening, self._listening = self._listening, None
        self._endpoint = ""
        if listening is not None:
            await self._backend.reach.forget(listening)

    async def _kill(self, channel: Channel, number: int, answer: asyncio.Future[Answer]) -> Answer:
        """Kill a command; return what it had written."""
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await channel.call("kill", job=number)
                return await answer
        except TimeoutError as error:
            raise SandboxError(f"sandbox {self.sandbox_id}: a command did not end when killed") from error

    async def _put(self, sandbox_path: str, pack: Callable[[BinaryIO], None]) -> None:
        channel = self._running()
        with tempfile.TemporaryFile() as stream:
            await self._blocking(_pack, stream, pack)
            await channel.call("put", path=absolute(sandbox_path), fd=stream.fileno())

    async def _blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await in_thread(self._backend.helpers.files, function, *arguments)

    def _running(self) -> Channel:
        channel = self._life.channel
        if channel is None or self._ending is not None:
            raise self._not_running()
        return channel

    def _command(self, cmd: str, env: Mapping[str, str] | None, cwd: str | None) -> dict[str, Any]:
        return {
            "cmd": checked(cmd),
            "env": {**self._life.env, **self._spec.env, **(env or {})},
            "cwd": absolute(cwd or self._spec.workdir),
            "program": self._backend.program(self._network),
        }


def _pack(stream: BinaryIO, pack: Callable[[BinaryIO], None]) -> None:
    pack(stream)
    stream.flush()
    stream.seek(0)


def _read_text(fd: int) -> str:
    """Read and close a descriptor that came out of a sandbox."""
    with open(fd, "rb") as file:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        return file.read(READ_BYTES).decode(errors="replace") if regular else ""
