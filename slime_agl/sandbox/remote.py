"""Sandboxes of which only commands and whole files can be had: clouds, and classes with the shape of slime's.

What the protocol asks for beyond that is done by shell commands inside: folders travel as archives, detached programs
leave a marker of their end.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from slime_agl.errors import SandboxError
from slime_agl.sandbox import shell
from slime_agl.sandbox.ending import Ending
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.programs import spooled
from slime_agl.sandbox.protocol import Content, ExecResult, Network, SandboxSpec, absolute

# Labels by which a later driver knows whose a sandbox was.
HOME_LABEL, DRIVER_LABEL = "slime_agl_home", "slime_agl_driver"
# One command waits this long for a detached program; connections are cut in longer ones.
LOOK_SECONDS = 45
SHORT_SECONDS = 60.0


class Remote(ABC):
    """A sandbox somewhere else. Methods raise SandboxError, or whatever its library raises."""

    @abstractmethod
    async def create(self, spec: SandboxSpec, labels: Mapping[str, str]) -> str:
        """Create it; return its id."""

    @abstractmethod
    async def run(self, cmd: str, user: str, env: Mapping[str, str], timeout: float, idempotent: bool) -> ExecResult:
        """Run a shell command; status 124 at the timeout."""

    @abstractmethod
    async def put(self, path: str, data: bytes, user: str) -> None:
        """Write a file whose folder exists."""

    @abstractmethod
    async def get(self, path: str, user: str) -> bytes | None:
        """Read a file; None if there is none."""

    @abstractmethod
    async def end(self) -> None: ...

    async def alive(self) -> bool:
        return (await self.run("true", "root", {}, SHORT_SECONDS, True))[0] == 0

    async def restrict(self, network: Network, host: str) -> None:
        """Change what a running sandbox reaches; host: the gateway's."""
        raise SandboxError("a sandbox of this backend keeps the network it was created with")


class RemoteBackend:
    """home: by its lock, later drivers on this machine know whether this one lives."""

    def __init__(self, name: str, home: Home, *, start_seconds: float = 60.0) -> None:
        self.name, self.home, self.start_seconds = name, home, start_seconds
        self.open: set[RemoteSandbox] = set()

    def remote(self) -> Remote:
        raise NotImplementedError

    def find(self, home: str) -> AsyncIterator[tuple[Remote, Mapping[str, str]]]:
        """Sandboxes with this value of HOME_LABEL, and their labels."""
        return _none()

    def sandbox(self, spec: SandboxSpec) -> RemoteSandbox:
        return RemoteSandbox(spec, self)

    async def reap(self, labels: Mapping[str, str]) -> int:
        count = 0
        try:
            async with aclosing(self.find(self.home.identity)) as found:  # type: ignore[type-var]
                async for remote, held in found:
                    dead = not await asyncio.to_thread(self.home.alive, held.get(DRIVER_LABEL, ""))
                    if dead and labels.items() <= held.items():
                        await remote.end()
                        count += 1
        except SandboxError:
            raise
        except Exception as error:  # the library's boundary
            raise SandboxError(f"{self.name} cannot list its sandboxes: {type(error).__name__}: {error}") from error
        return count

    async def close(self) -> None:
        await asyncio.gather(*(box.end() for box in list(self.open)))
        self.home.close()


async def _none() -> AsyncIterator[tuple[Remote, Mapping[str, str]]]:
    for nothing in ():
        yield nothing


class RemoteProcess:
    """folder: where the sandbox keeps its output and its status."""

    def __init__(self, box: RemoteSandbox, folder: str, job: str) -> None:
        self._box, self._folder, self._job = box, folder, job
        self._status: int | None = None

    async def wait(self, timeout: float | None = None) -> int | None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while self._status is None:
            left = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, deadline - loop.time())
            look = (
                f"n=0; while [ ! -f {self._folder}/status ] && [ $n -lt {max(0, int(2 * left))} ]; "
                f"do sleep 0.5; n=$((n+1)); done; cat {self._folder}/status 2>/dev/null; true"
            )
            _, out, _ = await self._box.exec(look, timeout=LOOK_SECONDS + SHORT_SECONDS, check=True)
            if out.strip():
                self._status = int(out)
            elif deadline is not None and loop.time() >= deadline:
                return None
        return self._status

    async def output(self, most_bytes: int = 65536) -> str:
        return (await self._box.exec(f"tail -c {most_bytes} {self._folder}/out", check=True))[1]

    async def kill(self) -> None:
        await self._box.exec(
            f"{shell.kill(self._job)}; [ -f {self._folder}/status ] || echo 137 > {self._folder}/status"
        )


class RemoteSandbox(Ending):
    def __init__(self, spec: SandboxSpec, backend: RemoteBackend) -> None:
        super().__init__()
        self.labels: Mapping[str, str] = dict(spec.labels)
        self._spec, self._backend = spec, backend
        self._network: Network = spec.network
        self._remote: Remote | None = None

    async def __aenter__(self) -> Self:
        spec, backend = self._spec, self._backend
        if spec.shared:
            raise SandboxError(
                f"{backend.name} sandboxes share no folders with this machine; install in each, or an image"
            )
        if spec.endpoint and spec.network != "none" and _is_loopback(spec.endpoint):
            raise SandboxError(
                f"the gateway's URL {spec.endpoint} leads nowhere in a {backend.name} sandbox; "
                "set agl.gateway.public_url to an address that it can reach"
            )
        backend.open.add(self)
        try:
            self._remote = backend.remote()
            await asyncio.to_thread(backend.home.name)
            labels = {**spec.labels, HOME_LABEL: backend.home.identity, DRIVER_LABEL: backend.home.driver}
            creating = asyncio.ensure_future(self._remote.create(spec, labels))
            try:
                self.sandbox_id = await asyncio.shield(creating)
            except asyncio.CancelledError:
                await asyncio.wait([creating])  # what comes of it has to be ended
                raise
            await self.exec(f"mkdir -p {shlex.quote(spec.workdir)}", cwd="/", check=True)
            for inside, outside in spec.mounts.items():
                await self.upload(outside, inside)
        except BaseException as error:  # also of the library, whose errors are the backend's
            await self.end()
            if isinstance(error, SandboxError) or not isinstance(error, Exception):
                raise
            raise SandboxError(f"{backend.name} created no sandbox: {type(error).__name__}: {error}") from error
        return self

    @property
    def endpoint(self) -> str:
        return self._spec.endpoint if self._network != "none" else ""

    def path(self, sandbox_path: str) -> str:
        return absolute(sandbox_path)

    async def exec(
        self,
        cmd: str,
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        check: bool = False,
        idempotent: bool = True,
        cwd: str | None = None,
    ) -> ExecResult:
        script = shell.prepared(cmd, absolute(cwd or self._spec.workdir))
        full = {**self._spec.env, **(env or {})}
        result = await self._guarded(self._live().run(script, user, full, timeout, idempotent))
        if check and result[0]:
            raise self._failed(cmd, *result)
        return result

    async def start(
        self, cmd: str, *, user: str = "root", env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> RemoteProcess:
        job = secrets.token_hex(8)
        folder = f"/tmp/.agl-{job}"
        inner = f"sh -c {shlex.quote(cmd)} >{folder}/out 2>&1 </dev/null; echo $? >{folder}/new"
        inner += f"; mv {folder}/new {folder}/status"
        # Idempotent, by the folder: a command whose answer was lost is sent again.
        begin = f"mkdir {folder} 2>/dev/null || exit 0; setsid sh -c {shlex.quote(inner)} >/dev/null 2>&1 </dev/null &"
        await self.exec(
            begin, user=user, env={**(env or {}), shell.JOB: job}, cwd=cwd, check=True, timeout=SHORT_SECONDS
        )
        return RemoteProcess(self, folder, job)

    async def write_file(self, sandbox_path: str, content: Content, *, user: str = "root") -> None:
        path = absolute(sandbox_path)
        data = await asyncio.to_thread(content.read_bytes) if isinstance(content, Path) else content
        await self.exec(f"mkdir -p {shlex.quote(str(Path(path).parent))}", user=user, cwd="/", check=True)
        await self._guarded(self._live().put(path, data.encode() if isinstance(data, str) else data, user))

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        data = await self._guarded(self._live().get(absolute(sandbox_path), user))
        return "" if data is None else data[: shell.READ_BYTES].decode(errors="replace")

    async def upload(self, host_path: Path, sandbox_path: str) -> None:
        path = absolute(sandbox_path)
        if host_path.is_file():
            await self.write_file(path, host_path)
            await self.exec(f"chmod {shell.mode_of(host_path)} {shlex.quote(path)}", cwd="/", check=True)
            return
        with spooled(b"") as archive:
            await asyncio.to_thread(shell.pack, archive, host_path)
            name = f"/tmp/.agl-{secrets.token_hex(8)}.tar"
            await self.write_file(name, await asyncio.to_thread(archive.read))
        await self.exec(f"{shell.unpack(path, name)} && rm {name}", cwd="/", check=True, timeout=600)

    async def set_network(self, network: Network) -> None:
        if network != self._network:
            await self._guarded(self._live().restrict(network, urlsplit(self._spec.endpoint).hostname or ""))
            self._network = network

    async def is_alive(self) -> bool:
        try:
            return self._ending is None and await self._guarded(self._live().alive())
        except SandboxError:
            return False

    async def _end(self) -> None:
        try:
            if self._remote is not None:
                await self._remote.end()
        except SandboxError:
            raise
        except Exception as error:  # the library's boundary
            raise SandboxError(
                f"sandbox {self.sandbox_id} could not be ended: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._backend.open.discard(self)

    def _live(self) -> Remote:
        if self._remote is None or self._ending is not None:
            raise self._not_running()
        return self._remote

    async def _guarded(self, call):
        try:
            return await call
        except SandboxError:
            raise
        except Exception as error:  # the library's boundary
            raise SandboxError(f"sandbox {self.sandbox_id}: {type(error).__name__}: {error}") from error


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
