"""Run model-written Python in a separate process, with resource limits, no network and a deadline.

The child is limited by rlimits (CPU time, memory, file size) and by a seccomp filter under which no socket can be made;
its environment is empty and its process group is killed at the deadline. Otherwise it has this user's rights and can
read this user's files: it contains honest mistakes, not an attacker.

This file is also the child's first program: `python sandbox.py ARGUMENTS` sets the limits and becomes
`python ARGUMENTS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
SHOWN_CHARACTERS = 2000

# Linux: audit architecture, and the numbers of socket and io_uring_setup (which can create sockets too).
SYSCALLS = {"x86_64": (0xC000003E, (41, 425)), "aarch64": (0xC00000B7, (198, 425))}
X32 = 0x40000000
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, KILL, DENY = 0x7FFF0000, 0x80000000, 0x00050000 | 1  # the low half is the errno, EPERM


@dataclass(frozen=True, slots=True)
class Ran:
    """output: stdout and stderr, truncated; status: the exit status, None at the deadline."""

    output: str
    status: int | None


async def run_python(arguments: list[str], *, cwd: Path, seconds: float = 5.0) -> Ran:
    """Run `python ARGUMENTS` in `cwd`. seconds: limit of wall time and of CPU time."""
    command = [sys.executable, "-I", str(Path(__file__).resolve()), str(int(seconds) + 1), *arguments]
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd,
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        status: int | None = None
        try:
            with contextlib.suppress(TimeoutError):
                status = await asyncio.wait_for(process.wait(), seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        output.seek(0)
        text = output.read(4 * SHOWN_CHARACTERS).decode(errors="replace")
    note = "" if status is not None else f"stopped after {seconds:g} s"
    return Ran(f"{text[:SHOWN_CHARACTERS]}{note}", status)


def _limit(cpu_seconds: int) -> None:
    for kind, value in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _forbid_network() -> None:
    """Make socket() fail with EPERM from here on, for this process and its children.

    Raises:
        OSError: the kernel or the architecture lacks such a filter; nothing runs without it.
    """
    if platform.machine() not in SYSCALLS or sys.platform != "linux":
        raise OSError(f"the sandbox knows Linux on {', '.join(SYSCALLS)}, this is {sys.platform} {platform.machine()}")
    architecture, numbers = SYSCALLS[platform.machine()]
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    steps += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    for number in numbers:
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, DENY)]
    steps.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, MODE_FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel refuses a seccomp filter")


if __name__ == "__main__":
    _limit(int(sys.argv[1]))
    _forbid_network()
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
