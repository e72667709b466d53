"""What a sandbox does, and what a backend is asked for.

The calls that slime's own `slime.agent.sandbox.Sandbox` has, keep its names and arguments, so that its backends serve
here too (see `adapted`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from slime_agl.errors import SandboxError

CMD_BYTES = 120_000  # what Linux takes as one argument, less a margin
ExecResult = tuple[int, str, str]
Content = str | bytes | Path
# `gateway`: the model's endpoint and nothing else. `open`: whatever the machine reaches, for installation.
Network = Literal["none", "gateway", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one sandbox; None leaves one to the backend. cpus: cores. processes: alive at a time."""

    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """A sandbox to create.

    image: container image, '' for the backend's default. workdir: absolute path inside, created if missing; commands
    start there. labels: names by which the reaper finds it again. mounts: host folders bound read-only, by the path
    inside. shared: host folders bound writable, by the path inside: for installing once what others then mount.
    endpoint: URL of the gateway on this machine, '' for a sandbox that calls no model; with a path, such as an
    attempt's, isolated sandboxes can request only what is below it.
    """

    image: str = ""
    workdir: str = "/app"
    labels: Mapping[str, str] = field(default_factory=dict)
    network: Network = "none"
    endpoint: str = ""
    mounts: Mapping[str, Path] = field(default_factory=dict)
    shared: Mapping[str, Path] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    ttl_seconds: float = 3600.0


class Process(Protocol):
    """A program that runs detached in a sandbox, which keeps the beginning and the end of its output."""

    async def wait(self, timeout: float | None = None) -> int | None:
        """Return its exit status (128 + signal if killed), or None when `timeout` seconds have passed."""
        ...

    async def output(self, most_bytes: int = 65536) -> str:
        """Return the end of what it has written to stdout and stderr so far."""
        ...

    async def kill(self) -> None:
        """End it and everything it started. Idempotent."""
        ...


class Sandbox(Protocol):
    """A sandbox that exists from `__aenter__` to `__aexit__`, which ends every process in it.

    Calls raise SandboxError when the sandbox or its backend fails; a command that fails is an exit status.
    """

    sandbox_id: str
    labels: Mapping[str, str]

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def endpoint(self) -> str:
        """URL under which programs inside reach the gateway of `SandboxSpec.endpoint`, '' without one."""
        ...

    def path(self, sandbox_path: str) -> str:
        """Return the path by which commands name a path of this protocol.

        It is the path itself, but for backends without a root of their own, whose commands find it in SANDBOX_ROOT.
        """
        ...

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
        """Run a shell command to its end; return (exit status, stdout, stderr), each output truncated in the middle.

        check: raise SandboxError if the status is not 0. At the timeout (seconds) the command is killed and the
        status is 124. idempotent: a backend may send it again after a transport failure.
        """
        ...

    async def start(
        self, cmd: str, *, user: str = "root", env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Process:
        """Run a shell command detached."""
        ...

    async def write_file(self, sandbox_path: str, content: Content, *, user: str = "root") -> None:
        """Write text, bytes or a host file; parent folders are created."""
        ...

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        """Return the text of a file, of its first 64 MiB, undecodable bytes replaced; '' if it cannot be read."""
        ...

    async def upload(self, host_path: Path, sandbox_path: str) -> None:
        """Copy a host folder or file to a path inside, with its modes, symbolic links as links.

        A folder is merged into one that is there.
        """
        ...

    async def set_network(self, network: Network) -> None:
        """Change what the sandbox reaches from here on.

        Raises:
            SandboxError: the backend cannot change it after creation.
        """
        ...

    async def is_alive(self) -> bool: ...


class Backend(Protocol):
    """Creates sandboxes of one kind, and finds those that a dead process left."""

    name: str

    def sandbox(self, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox that `async with` creates."""
        ...

    async def reap(self, labels: Mapping[str, str]) -> int:
        """End all sandboxes with these labels whose owner is gone; return how many."""
        ...

    async def close(self) -> None:
        """End all sandboxes of this process. Idempotent."""
        ...


def absolute(sandbox_path: str) -> str:
    """Return a path of the protocol without `.` and doubled slashes.

    Raises:
        SandboxError: it is relative, or goes up.
    """
    parts = [part for part in sandbox_path.split("/") if part not in ("", ".")]
    if not sandbox_path.startswith("/") or ".." in parts:
        raise SandboxError(f"{sandbox_path!r} is not an absolute path without `..`, as paths in a sandbox are")
    return "/" + "/".join(parts)


def checked(cmd: str) -> str:
    """Return a command that fits into one argument of a program.

    Raises:
        SandboxError: it is too long.
    """
    size = len(cmd.encode())
    if size > CMD_BYTES:
        raise SandboxError(f"a command of {size} bytes is longer than {CMD_BYTES}; write it to a file and run that")
    return cmd
