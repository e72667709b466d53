"""Backends on this machine, whose sandboxes are run by keepers: what `local` and `bwrap` have in common."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slime_agl.sandbox import cgroups, spawning
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.kept_sandbox import KeptSandbox
from slime_agl.sandbox.protocol import Limits, Network, SandboxSpec
from slime_agl.sandbox.reach import Reach

logger = logging.getLogger(__name__)

PACKAGE = "slime_agl.sandbox.inside"
INSIDE = Path(__file__).parent / "inside"
USER = "agent"
USER_HOME = f"/home/{USER}"


def keeper_argv(path: str, control: int, python: str) -> list[str]:
    """Command line of a keeper. path: folder that contains this package. control: its end of the socket."""
    code = f"import sys; sys.path.insert(0, {path!r}); from {PACKAGE}.keeper import main; main()"
    return [python, "-I", "-S", "-c", code, str(control)]


def own_python() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A keeper to start.

    env: of the commands in the sandbox. root: of the sandbox, as its keeper sees it. links: host folders by the path
    inside, and if they are writable, where the root's links show them rather than mounts. fds: to pass on and close.
    info: end of a pipe that tells the process whose end is the sandbox's, -1 if that is the keeper.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    root: str
    links: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    fds: Sequence[int] = ()
    info: int = -1


class KeptBackend(ABC):
    """home: where its sandboxes have their files. reach: how they reach the gateway.

    isolates: the gateway is reached through a socket that listens inside, and nothing else is.
    """

    name: str
    isolates: bool

    def __init__(self, home: Home, reach: Reach, *, start_seconds: float = 60.0) -> None:
        self.home, self.reach, self.start_seconds = home, reach, start_seconds
        self.helpers = spawning.Helpers()
        self.open: set[KeptSandbox] = set()
        self._warned: set[str] = set()

    def sandbox(self, spec: SandboxSpec) -> KeptSandbox:
        return KeptSandbox(spec, self)

    async def reap(self, labels: Mapping[str, str]) -> int:
        return await asyncio.get_running_loop().run_in_executor(self.helpers.files, self.home.reap, labels)

    async def close(self) -> None:
        await asyncio.gather(*(box.end() for box in list(self.open)))
        self.home.close()
        self.helpers.close()

    @classmethod
    def check(cls) -> None:
        """Raise SandboxError, with what to do, if this machine cannot run such sandboxes. Blocks."""
        return

    @property
    def limits_processes(self) -> bool:
        """True if the number of a sandbox's processes is bounded where a limit says so."""
        return cgroups.usable()

    @abstractmethod
    def launch(self, spec: SandboxSpec, folder: Path, control: int) -> Launch:
        """Prepare a sandbox's folder, and say how its keeper is started. Blocks.

        Raises:
            SandboxError: this machine cannot run it.
        """

    @abstractmethod
    def path(self, root: Path, sandbox_path: str) -> str:
        """A path of the protocol as commands inside name it."""

    @abstractmethod
    def check_network(self, before: Network, after: Network) -> None:
        """Raise SandboxError if the network of a running sandbox cannot be changed so."""

    def program(self, network: Network) -> bytes | None:
        """Seccomp filter for the commands of a sandbox with this network."""
        return None

    def limits(self, limits: Limits) -> dict[str, int]:
        """Limits of every process, by the names of `resource`."""
        found = {"RLIMIT_CORE": 0}
        if limits.memory_mb is not None:
            # Not the address space, of which Node and Go reserve far more than they use.
            found["RLIMIT_DATA"] = limits.memory_mb << 20
        if limits.storage_mb is not None:
            found["RLIMIT_FSIZE"] = limits.storage_mb << 20
        return found

    def unlimited(self, limits: Limits, grouped: set[str]) -> list[str]:
        """The limits that do not hold for a sandbox. grouped: the controllers that do limit it."""
        return [
            name
            for name, controller, value in (
                ("processes", "pids", limits.processes),
                ("cpus", "cpu", limits.cpus),
                ("memory_mb (as a sum; each process is limited)", "memory", limits.memory_mb),
            )
            if value is not None and controller not in grouped
        ]

    def warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)
