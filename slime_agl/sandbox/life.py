"""A sandbox's folder, keeper and control group, from its creation to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slime_agl.errors import SandboxError
from slime_agl.sandbox import cgroups
from slime_agl.sandbox.channel import Channel
from slime_agl.sandbox.home import ROOT, VARIABLE, remove
from slime_agl.sandbox.inside.processes import end_all, marked
from slime_agl.sandbox.protocol import SandboxSpec, absolute
from slime_agl.sandbox.spawning import gone, in_thread, readable, start

if TYPE_CHECKING:
    from slime_agl.sandbox.kept import KeptBackend, Launch

T = TypeVar("T")
LOG = "keeper.log"
SAID_BYTES = 2000
# For a keeper to end what runs in it; then it is ended from outside.
END_SECONDS = 10.0


class Life:
    """Owned by one event loop. `begin` may be cancelled at any point, `end` follows it in any case."""

    def __init__(self, spec: SandboxSpec, backend: KeptBackend) -> None:
        self._spec, self._backend = spec, backend
        self._launch: Launch | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._inner = self._inner_pid = -1
        self._cgroup: cgroups.Cgroup | None = None
        self.folder: Path | None = None
        self.channel: Channel | None = None
        self.env: dict[str, str] = {}

    @property
    def root(self) -> Path:
        assert self.folder is not None
        return self.folder / ROOT

    @property
    def leader(self) -> int:
        """Pid of the process whose end is the sandbox's."""
        assert self._process is not None
        return self._process.pid if self._inner_pid < 0 else self._inner_pid

    async def begin(self) -> Channel:
        """Create the sandbox and wait until its keeper answers.

        Raises:
            SandboxError: it cannot be created, with what was said on stderr.
        """
        # What threads make is kept there and then: a wait that is cancelled must not lose it.
        await self._blocking(self._make_folder)
        ours, theirs = socket.socketpair()
        try:
            await self._blocking(self._start, theirs.fileno())
            theirs.close()
            channel = self.channel = Channel(ours, self._name)
            await self._blocking(self._limit)
            await self._boot(channel)
            return channel
        except (SandboxError, OSError) as error:
            raise SandboxError(f"{error}{await self._blocking(self._said)}") from error
        finally:
            theirs.close()
            if self.channel is None:
                ours.close()
            if self._launch is not None and self._launch.info >= 0:
                os.close(self._launch.info)

    async def end(self) -> None:
        """End every process of the sandbox and remove its files."""
        if self._process is not None:
            await self._end_processes(self._process)
        if self.channel is not None:
            self.channel.close()
        if self._inner >= 0:
            os.close(self._inner)
            self._inner = -1
        if self._cgroup is not None:
            await self._blocking(self._cgroup.remove)
        if self.folder is not None:
            await self._blocking(remove, self.folder)

    @property
    def _name(self) -> str:
        return self.folder.name if self.folder is not None else "(none)"

    def _make_folder(self) -> None:
        self.folder = self._backend.home.new(self._spec.labels)

    def _start(self, control: int) -> None:
        assert self.folder is not None
        helpers, mark = self._backend.helpers, {VARIABLE: self._backend.home.mark(self.folder)}
        launch = self._launch = self._backend.launch(self._spec, self.folder, control)
        self.env = dict(launch.env)
        try:
            self._process = helpers.starts.submit(
                start, launch.argv, [control, *launch.fds], mark, self.folder / LOG
            ).result()
        except OSError as error:
            raise SandboxError(f"cannot start {launch.argv[0]}: {error.strerror or error}") from error
        finally:
            for fd in launch.fds:
                os.close(fd)
        if launch.info >= 0:
            self._inner_pid = _told(launch.info, self._backend.start_seconds)
            with contextlib.suppress(ProcessLookupError):  # ended already; the channel's end tells why
                self._inner = os.pidfd_open(self._inner_pid)

    def _limit(self) -> None:
        """Put the keeper into a control group, before it starts anything."""
        backend, limits = self._backend, self._spec.limits
        if (limits.processes, limits.memory_mb, limits.cpus) == (None, None, None):
            return
        assert self._process is not None
        self._cgroup = cgroups.create(backend.home.mark(self.root.parent).replace("/", "."), limits)
        if self._cgroup is not None:
            # The keeper itself, too: it may be started already, and a group takes no children along.
            for pid in {self._process.pid, self._inner_pid} - {-1}:
                with contextlib.suppress(ProcessLookupError):
                    self._cgroup.add(pid)
        missing = backend.unlimited(limits, self._cgroup.limits if self._cgroup is not None else set())
        if missing:
            backend.warn_once(
                f"agl.sandbox.limits: {', '.join(missing)} cannot be enforced on {backend.name} sandboxes by this "
                "user; run as root where control groups can be made, or leave them out"
            )

    async def _boot(self, channel: Channel) -> None:
        assert self._launch is not None
        limits = self._backend.limits(self._spec.limits)
        launch, workdir = self._launch, absolute(self._spec.workdir)
        await channel.call("boot", root=launch.root, links=dict(launch.links), workdir=workdir, limits=limits)

    async def _blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        return await in_thread(self._backend.helpers.files, function, *arguments)

    async def _end_processes(self, process: subprocess.Popen[bytes]) -> None:
        if self._inner >= 0:
            # Process 1 of a namespace: it is gone only after all others in it.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)
            await readable(self._inner)
        if self.channel is not None:
            self.channel.close()
        else:
            process.kill()
        try:
            await asyncio.wait_for(gone(process), END_SECONDS)
        except TimeoutError:
            process.kill()
            await gone(process)
        if process.returncode != 0 and self._inner < 0:
            # The keeper did not end what it kept.
            mark = f"{VARIABLE}={self._backend.home.mark(self.root.parent)}".encode() + b"\0"
            await self._blocking(end_all, lambda: marked(mark) - {os.getpid()})

    def _said(self) -> str:
        """What the keeper wrote before it failed."""
        try:
            assert self.folder is not None
            said = (self.folder / LOG).read_bytes()[-SAID_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""
        return f": {said}" if said else ""


def _told(info: int, seconds: float) -> int:
    """Pid of the process that a namespace begins with, as bwrap tells it.

    Raises:
        SandboxError: bwrap ended, or says nothing.
    """
    poll = select.poll()
    poll.register(info, select.POLLIN)
    said = b""
    while poll.poll(1000 * seconds) and (part := os.read(info, 4096)):
        said += part
        if b"}" in said:
            break
    try:
        return json.loads(said)["child-pid"]
    except ValueError as error:
        raise SandboxError("bwrap did not make the sandbox") from error
