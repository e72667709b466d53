"""Backends `docker`, `podman` and `apptainer`, through their command line programs.

A container has no network but its loopback; what programs in it reach as the gateway is a socket that this machine
makes in the container's network namespace. That takes an engine on this machine (not in a virtual machine, as Docker
Desktop's), and root here unless the engine is rootless. Containers end by themselves when their time is over.

A program that a command leaves behind must not go on writing to the output that it inherited, which is closed then.
docker and apptainer were tested against stand-ins of their programs only; podman for real.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from slime_agl.errors import SandboxError
from slime_agl.sandbox import shell
from slime_agl.sandbox.ending import Ending
from slime_agl.sandbox.engines import Engine
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.inside.wire import passed
from slime_agl.sandbox.programs import Program, ran, spooled
from slime_agl.sandbox.protocol import Content, ExecResult, Network, SandboxSpec, absolute
from slime_agl.sandbox.reach import Reach, address_of

TIMED_OUT = 124
READ_SECONDS = 120.0
KILLS, KILL_SECONDS = 20, 0.5
PACKAGES = str(Path(__file__).parents[2])
LISTEN = "import sys; sys.path.insert(0, {!r}); from slime_agl.sandbox.inside.listener import main; main()"


class ContainerBackend:
    """home: by its lock, later drivers know whether this one lives."""

    def __init__(self, engine: Engine, home: Home, reach: Reach, *, start_seconds: float = 60.0) -> None:
        self.name = engine.program
        self.engine, self.home, self.reach, self.start_seconds = engine, home, reach, start_seconds
        self.open: set[Container] = set()

    def sandbox(self, spec: SandboxSpec) -> Container:
        return Container(spec, self)

    async def reap(self, labels: Mapping[str, str]) -> int:
        dead = [
            name
            for name, driver, held in await self.engine.list(str(self.home.base))
            if driver != self.home.driver and labels.items() <= held.items() and not self.home.alive(driver)
        ]
        await asyncio.gather(*(ran(self.engine.end(name)) for name in dead), return_exceptions=True)
        return len(dead)

    async def close(self) -> None:
        await asyncio.gather(*(box.end() for box in list(self.open)))
        self.home.close()


class ContainerProcess:
    def __init__(self, box: Container, job: str, program: Program) -> None:
        self._box, self._job, self._program = box, job, program

    async def wait(self, timeout: float | None = None) -> int | None:
        return await self._program.wait(timeout)

    async def output(self, most_bytes: int = 65536) -> str:
        return self._program.out.text()[-most_bytes:].decode(errors="replace") if most_bytes else ""

    async def kill(self) -> None:
        await self._box.kill(self._job, self._program)


class Container(Ending):
    """A container that does nothing but wait; commands enter it."""

    def __init__(self, spec: SandboxSpec, backend: ContainerBackend) -> None:
        super().__init__()
        self.labels: Mapping[str, str] = dict(spec.labels)
        self._spec, self._backend, self._engine = spec, backend, backend.engine
        self._network: Network = spec.network
        self._jobs = itertools.count(1)
        self._programs: set[Program] = set()
        self._listening: socket.socket | None = None
        self._endpoint = ""

    async def __aenter__(self) -> Self:
        home = self._backend.home
        if not self._spec.image:
            raise SandboxError(f"a {self._backend.name} sandbox needs an image; set agl.sandbox.image, or the task's")
        self._backend.open.add(self)
        try:
            self.sandbox_id = f"slime_agl-{await asyncio.to_thread(home.name)}"  # names the driver, as Apptainer needs
            argv = self._engine.create(self.sandbox_id, self._spec, str(home.base), home.driver)
            await ran(argv, timeout=self._backend.start_seconds)
            await ran(self._argv(f"mkdir -p {shlex.quote(self._spec.workdir)}", "root", {}, "/"))
            await self._reach()
        except BaseException:
            await self.end()
            raise
        return self

    @property
    def endpoint(self) -> str:
        return self._endpoint

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
    ) -> ExecResult:
        job, program = await self._run(cmd, user, env, self._spec.workdir)
        try:
            status = await program.wait(timeout)
            if status is None:
                await self.kill(job, program)
                status = TIMED_OUT
        except asyncio.CancelledError:
            await asyncio.shield(self.kill(job, program))
            raise
        finally:
            self._programs.discard(program)
        out, err = program.out.text().decode(errors="replace"), program.err.text().decode(errors="replace")
        if check and status:
            raise self._failed(cmd, status, out, err)
        return status, out, err

    async def start(
        self, cmd: str, *, user: str = "root", env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> ContainerProcess:
        job, program = await self._run(cmd, user, env, absolute(cwd or self._spec.workdir), merged=True)
        return ContainerProcess(self, job, program)

    async def write_file(self, sandbox_path: str, content: Content, *, user: str = "root") -> None:
        self._running()
        data = await asyncio.to_thread(content.read_bytes) if isinstance(content, Path) else content
        with spooled(data.encode() if isinstance(data, str) else data) as stdin:
            await ran(self._argv(shell.write(absolute(sandbox_path)), user, {}, "/", stdin=True), stdin=stdin)

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        self._running()
        argv = self._argv(shell.read(absolute(sandbox_path)), user, {}, "/")
        program = await Program.start(argv, most=2 * shell.READ_BYTES)
        status = await program.wait(READ_SECONDS)
        if status is None:
            await program.kill()
            raise SandboxError(f"sandbox {self.sandbox_id}: {sandbox_path} could not be read in {READ_SECONDS:g} s")
        return program.out.text().decode(errors="replace") if status == 0 else ""

    async def upload(self, host_path: Path, sandbox_path: str) -> None:
        self._running()
        path = absolute(sandbox_path)
        if host_path.is_file():
            await self.write_file(path, host_path)
            await ran(self._argv(f"chmod {shell.mode_of(host_path)} {shlex.quote(path)}", "root", {}, "/"))
            return
        with spooled(b"") as archive:
            await asyncio.to_thread(shell.pack, archive, host_path)
            await ran(self._argv(shell.unpack(path), "root", {}, "/", stdin=True), stdin=archive, timeout=600)

    async def set_network(self, network: Network) -> None:
        self._running()
        if network == "open" != self._network:
            raise SandboxError(
                f"a {self._backend.name} sandbox without a network cannot get one; create it with `open`"
            )
        if self._network == "open" != network:
            for argv in await self._engine.disconnect(self.sandbox_id):
                await ran(argv)
        await self._unreach()
        self._network = network
        await self._reach()

    async def is_alive(self) -> bool:
        try:
            return self._ending is None and await self._engine.pid(self.sandbox_id) > 0
        except SandboxError:
            return False

    async def kill(self, job: str, program: Program) -> None:
        """Kill a command and what it started. Again until its program ends: the engine may not have started it yet."""
        for _ in range(KILLS):
            await ran(self._argv(shell.kill(job), "root", {}, "/"))
            if await program.wait(KILL_SECONDS) is not None:
                return
        await program.kill()

    async def _end(self) -> None:
        try:
            await self._unreach()
            if self.sandbox_id:
                await ran(self._engine.end(self.sandbox_id))
        except SandboxError as error:
            if "no such" not in str(error).lower():
                raise
        finally:
            await asyncio.gather(*(program.kill() for program in self._programs))
            self._backend.open.discard(self)

    async def _run(
        self, cmd: str, user: str, env: Mapping[str, str] | None, workdir: str, *, merged: bool = False
    ) -> tuple[str, Program]:
        self._running()
        job = f"{self.sandbox_id}-{next(self._jobs)}"
        program = await Program.start(
            self._argv(cmd, user, {**self._spec.env, **(env or {}), shell.JOB: job}, workdir), merged=merged
        )
        self._programs.add(program)
        return job, program

    def _argv(self, cmd: str, user: str, env: Mapping[str, str], workdir: str, *, stdin: bool = False) -> list[str]:
        script = cmd if stdin else shell.prepared(cmd, workdir)
        return self._engine.execute(self.sandbox_id, script, user, env, stdin=stdin)

    def _running(self) -> None:
        if not self.sandbox_id or self._ending is not None:
            raise self._not_running()

    async def _reach(self) -> None:
        endpoint = self._spec.endpoint if self._network != "none" else ""
        if endpoint:
            port = address_of(endpoint)[1]
            pid = await self._engine.pid(self.sandbox_id)
            self._listening = await listening_in(pid, port if port >= 1024 else 0)
            self._endpoint = await self._backend.reach.serve(self._listening, endpoint)

    async def _unreach(self) -> None:
        listening, self._listening = self._listening, None
        self._endpoint = ""
        if listening is not None:
            await self._backend.reach.forget(listening)


async def listening_in(pid: int, port: int) -> socket.socket:
    """Return a socket that listens on the loopback of a process's network namespace.

    Raises:
        SandboxError: this user cannot enter it, or it is another machine's.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.set_inheritable(True)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", LISTEN.format(PACKAGES), str(pid), str(port), str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stderr=asyncio.subprocess.PIPE,
        )
        said = (await process.communicate())[1].decode(errors="replace").strip()
        if process.returncode:
            raise SandboxError(
                f"cannot reach the network of the container's process {pid} ({said[-300:]}); the engine has to run on "
                "this machine, rootless or with this user being root, or choose agl.sandbox.backend: bwrap"
            )
        _, extra, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(16))
        return socket.socket(fileno=passed(extra)[0])
