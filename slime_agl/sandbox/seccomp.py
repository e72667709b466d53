"""Seccomp filters, as BPF programs: which system calls commands in a sandbox cannot make."""

from __future__ import annotations

import functools
import platform
import struct
import sys
from dataclasses import dataclass

from slime_agl.errors import SandboxError

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
X32 = 0x40000000
CLONE_NEWUSER = 0x10000000
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. A network namespace does not isolate AF_VSOCK, which reaches the hypervisor.
FAMILIES = (1, 2, 10, 16)

Step = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Numbers of the system calls. creds: keyrings, which no namespace isolates. odd: large, rarely needed surfaces."""

    audit: int
    socket: int
    socketpair: int
    clone: int
    unshare: int
    setns: int
    mount: int
    io_uring: tuple[int, ...] = (425, 426, 427)
    clone3: int = 435
    creds: tuple[int, ...]
    odd: tuple[int, ...]


MACHINES = {
    "x86_64": Machine(
        audit=0xC000003E,
        socket=41,
        socketpair=53,
        clone=56,
        unshare=272,
        setns=308,
        mount=165,
        creds=(248, 249, 250),
        odd=(298, 321, 323),
    ),
    "aarch64": Machine(
        audit=0xC00000B7,
        socket=198,
        socketpair=199,
        clone=220,
        unshare=97,
        setns=268,
        mount=40,
        creds=(217, 218, 219),
        odd=(241, 280, 282),
    ),
}


@functools.cache
def no_sockets() -> bytes | None:
    """No socket can be made, whatever its family; pairs of them can. None outside Linux, where there is no such filter.

    Raises:
        SandboxError: the machine's numbers are unknown.
    """
    if sys.platform != "linux":
        return None
    machine = _machine()
    steps = _begin(machine)
    for number in (machine.socket, *machine.io_uring):
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | EPERM)]
    return _pack(steps)


@functools.cache
def contained() -> bytes:
    """For a namespaced sandbox: what namespaces do not isolate is out of reach, and new user namespaces are.

    Raises:
        SandboxError: the machine's numbers are unknown.
    """
    machine = _machine()
    steps = _begin(machine)
    for number in (*machine.io_uring, *machine.creds, *machine.odd, machine.unshare, machine.setns, machine.mount):
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | EPERM)]
    # Its flags are behind a pointer; the C library falls back to clone.
    steps += [(EQUAL, 0, 1, machine.clone3), (RETURN, 0, 0, ERRNO | ENOSYS)]
    steps += [
        (EQUAL, 0, 4, machine.clone),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, CLONE_NEWUSER),
        (RETURN, 0, 0, ERRNO | EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    for number in (machine.socket, machine.socketpair):
        steps += [(EQUAL, 0, len(FAMILIES) + 3, number), (LOAD, 0, 0, FIRST_ARGUMENT)]
        steps += [(EQUAL, len(FAMILIES) - at, 0, family) for at, family in enumerate(FAMILIES)]
        steps += [(RETURN, 0, 0, ERRNO | EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)]
    return _pack(steps)


def _begin(machine: Machine) -> list[Step]:
    steps = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, machine.audit), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    return [*steps, (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]


def _pack(steps: list[Step]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in [*steps, (RETURN, 0, 0, ALLOW)])


def _machine() -> Machine:
    machine = MACHINES.get(platform.machine())
    if machine is None or sys.platform != "linux":
        raise SandboxError(
            f"no system call filter for {sys.platform} on {platform.machine()}; "
            f"sandboxes without a network run on Linux on {' and '.join(MACHINES)}"
        )
    return machine
