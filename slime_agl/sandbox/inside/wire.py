"""The wire between a driver and the keeper of a sandbox.

The driver sends requests: a length, then a marshalled mapping with `op`, `number` and `with_fd`; a file descriptor may
travel with the first byte. Answers are fixed fields and two payloads, because the driver trusts nothing that comes out
of a sandbox.
"""

from __future__ import annotations

import array
import socket
import struct

LENGTH = struct.Struct("!I")
# number, kind, exit status, sizes of the two payloads
ANSWER = struct.Struct("!IBiII")
DONE, FAILED, WITH_FD, JOB_ENDED = range(4)
# Of a streamed tree: kind, mode, size of the path, size of the content
ENTRY = struct.Struct("!cIIQ")
FOLDER, FILE, LINK = b"d", b"f", b"l"
KEEP_MODE = 0xFFFFFFFF

CHUNK = 1 << 16
# Environment variable of a command: the number of the request that started it.
JOB = "SANDBOX_JOB"


def rights(fd: int) -> list[tuple[int, int, bytes]]:
    """Ancillary data that passes a descriptor; nothing if it is negative."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]).tobytes())] if fd >= 0 else []


def passed(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in ancillary data."""
    found = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    return list(found)
