"""Mark the processes that attempts start, and end them with their attempt.

Every process that Python's `subprocess` (and so asyncio, anyio, os.popen) starts in an attempt's task or thread gets an
environment variable, which its children inherit, daemons included. A forked process has none, because the kernel shows
the environment that a program started with; it reports its birth through a pipe. Linux only; elsewhere none are found.

Not found: processes of a thread without the attempt's context, those started by `os.system`, `os.posix_spawn` or
`multiprocessing`'s 'spawn', daemons that replace their environment, and those started by another program, such as a
container engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import inspect
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slime_agl.lightning import warden
from slime_agl.lightning.owner import Name, Owner, current
from slime_agl.lightning.warden import Births, birth, birth_line, descendants, marked, read_birth, send

logger = logging.getLogger(__name__)

VARIABLE = "SLIME_AGL_ATTEMPT"
GRACE_SECONDS = 2.0
LOOK_AGAIN_SECONDS = 0.02
ROUNDS = 200


class Processes:
    """Tracks and ends the processes of attempts, from `install` to `close`. Owned by the event loop of the runners.

    ended: number of processes that outlived their attempt and were ended. left: those that could not be ended.
    """

    def __init__(self) -> None:
        self.ended = self.left = 0
        # Distinguishes this driver from any other, even an earlier one with the same pid.
        self._driver = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._births: dict[Name, Births] = {}
        self._born: Counter[Name] = Counter()
        self._unread = b""
        self._pipe: tuple[int, int] | None = None
        self._warden: subprocess.Popen[bytes] | None = None
        self._calling = threading.Lock()
        self._looking = asyncio.Lock()
        self._next_look: asyncio.Future[dict[Name, set[int]]] | None = None
        self._looks = ThreadPoolExecutor(1, thread_name_prefix="agl-processes")

    def install(self) -> None:
        """Mark the processes that attempts start from now on."""
        global _marking
        if os.path.isdir("/proc/self"):
            self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            _marking = self
            _watch_starts()

    async def close(self) -> None:
        """End the remaining processes of all attempts and stop marking. Idempotent."""
        global _marking
        if self._pipe is None:
            return
        if self._warden is not None:
            await self._end_with(lambda found: set().union(*found.values()))
        if _marking is self:
            _marking = None
        for end in self._pipe:
            os.close(end)
        self._pipe = None
        self._dismiss_warden()
        self._looks.shutdown(wait=False)

    async def end(self, owner: Owner) -> int:
        """End the processes of an attempt and their descendants; returns how many.

        They get SIGTERM, then SIGKILL after a grace period.
        """
        if not owner.started_processes or self._pipe is None:
            return 0
        await self._all_born(owner)
        count = await self._end_with(lambda found: found.get(owner.name, set()))
        del self._born[owner.name]
        for pid, _ in self._births.pop(owner.name, ()):
            # Reap it: perhaps nothing else waits for it, and a zombie keeps its pid.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return count

    async def _all_born(self, owner: Owner) -> None:
        """Wait for forked children that have not reported their birth yet."""
        for _ in range(ROUNDS):
            self._read_births()
            if self._born[owner.name] >= owner.forks:
                return
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _end_with(self, whose: Callable[[dict[Name, set[int]]], set[int]]) -> int:
        loop = asyncio.get_running_loop()
        alive: set[int] = set()
        seen: set[int] = set()
        refused: set[int] = set()
        deadline = loop.time() + GRACE_SECONDS
        for _ in range(ROUNDS):
            alive = whose(await self._look()) - refused
            if not alive:
                break
            late = loop.time() > deadline
            for pid in alive if late else alive - seen:
                if not send(pid, signal.SIGKILL if late else signal.SIGTERM):
                    refused.add(pid)
            seen |= alive
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        else:
            refused |= alive
        self.ended += len(seen - refused)
        if refused:
            self.left += len(refused)
            logger.warning("processes %s, which an attempt started, could not be ended", sorted(refused))
        return len(seen - refused)

    async def _look(self) -> dict[Name, set[int]]:
        """Find the live processes of attempts. Callers that arrive before a scan begins share it."""
        if self._next_look is None:
            self._next_look = asyncio.ensure_future(self._look_once())
        return await asyncio.shield(self._next_look)

    async def _look_once(self) -> dict[Name, set[int]]:
        async with self._looking:
            self._next_look = None
            self._read_births()
            births = {name: set(known) for name, known in self._births.items()}
            return await asyncio.get_running_loop().run_in_executor(self._looks, self._found, births)

    def _found(self, births: dict[Name, Births]) -> dict[Name, set[int]]:
        found: dict[Name, set[int]] = {}
        for pid, rest in marked(self._mark().encode()).items():
            rollout_id, _, attempt_id = rest.decode(errors="replace").partition("/")
            found.setdefault((rollout_id, attempt_id), set()).add(pid)
        for name, known in births.items():
            if forked := descendants(known):
                found.setdefault(name, set()).update(forked)
        return found

    def _read_births(self) -> None:
        assert self._pipe is not None
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self._pipe[0], 65536):
                *lines, self._unread = (self._unread + read).split(b"\n")
                for line in lines:
                    rollout_id, _, attempt_id = line.split()[2].decode().partition("/")
                    name = rollout_id, attempt_id
                    self._births.setdefault(name, set()).add(read_birth(line))
                    self._born[name] += int(line.split()[3]) == os.getpid()

    def _mark(self) -> str:
        return f"{VARIABLE}={self._driver}/"

    def variable(self, owner: Owner) -> str:
        """The variable's value for an attempt. Also starts the warden, which ends the process if the driver dies."""
        owner.started_processes = True
        self._call_warden()
        return f"{self._driver}/{owner.name[0]}/{owner.name[1]}"

    def tell_birth(self, owner: Owner) -> None:
        """Report a birth. Called in the forked child."""
        line = birth_line(os.getpid(), "/".join(owner.name))
        for pipe in (self._pipe and self._pipe[1], self._warden and self._warden.stdin and self._warden.stdin.fileno()):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    os.write(pipe, line)

    def _call_warden(self) -> None:
        """Start the warden, which outlives this process, when the first process to watch starts."""
        if self._warden is not None:
            return
        with self._calling:
            if self._warden is None:
                self._warden = self._new_warden()

    def _new_warden(self) -> subprocess.Popen[bytes] | None:
        command = [sys.executable, "-I", "-S", warden.__file__, *map(str, birth(os.getpid())), self._mark()]
        null = subprocess.DEVNULL
        try:
            # A session of its own, so that signals from the user's terminal do not reach it.
            return _start(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)
        except OSError as error:
            logger.warning("no process watches over this one (%s): if it is killed, what agents started is left", error)
            return None

    def _dismiss_warden(self) -> None:
        if self._warden is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._warden.communicate(b"quit\n", timeout=GRACE_SECONDS)


# The live runners' own. The hooks below are installed once and act only for it.
_marking: Processes | None = None
_plain_init = subprocess.Popen.__init__
_signature = inspect.signature(_plain_init)


@functools.wraps(_plain_init)
def _marked_init(self: Any, *args: Any, **kwargs: Any) -> None:
    owner, marking = current.get(), _marking
    if owner is None or marking is None or owner.state == "over":
        return _plain_init(self, *args, **kwargs)
    if owner.state == "left_behind":
        # Popen's __del__ reads this attribute, also of an object that never started.
        self._child_created = False
        raise PermissionError(errno.EPERM, f"{owner} has ended, it can start no process")
    bound = _signature.bind(self, *args, **kwargs)
    environment = bound.arguments.get("env")
    environment = os.environ if environment is None else environment
    bound.arguments["env"] = {**environment, VARIABLE: marking.variable(owner)}
    return _plain_init(*bound.args, **bound.kwargs)


def _start(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
    """Start a process that belongs to no attempt, whichever task this runs in."""
    popen = subprocess.Popen.__new__(subprocess.Popen)
    _plain_init(popen, command, **more)
    return popen


def _forking() -> None:
    owner, marking = current.get(), _marking
    if owner is not None and marking is not None and owner.state != "over":
        marking.variable(owner)
        owner.forks += 1


def _forked() -> None:
    owner, marking = current.get(), _marking
    if owner is not None and marking is not None and owner.state != "over":
        os.environ[VARIABLE] = f"{marking._driver}/{owner.name[0]}/{owner.name[1]}"
        marking.tell_birth(owner)


@functools.cache
def _watch_starts() -> None:
    """Install the hooks once per process: fork hooks cannot be removed."""
    subprocess.Popen.__init__ = _marked_init  # type: ignore[method-assign]
    os.register_at_fork(before=_forking, after_in_child=_forked)
