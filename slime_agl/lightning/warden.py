"""End the processes of a driver's attempts if the driver dies. A program of its own: `warden.py PID BEGAN MARK`.

PID, BEGAN: the driver, as in `birth`. MARK: prefix of the environment entry of such a process. Stdin lists processes
without the entry, one line each as in `birth_line`, and `quit` when the driver no longer needs this program. Imports
only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import NamedTuple

GRACE_SECONDS = 2.0
ROUNDS = 100

Births = set[tuple[int, int]]


class _Status(NamedTuple):
    """state: as in /proc. parent: pid. began: clock ticks since boot."""

    state: bytes
    parent: int
    began: int


def marked(mark: bytes, among: set[int] | None = None) -> dict[int, bytes]:
    """Pids of the processes with an environment entry that begins with `mark`, each with the rest of the entry."""
    found = {}
    for pid in pids() if among is None else among:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = b"\0" + file.read()
        except OSError:
            continue  # gone, or another user's
        at = environment.find(b"\0" + mark)
        if at >= 0:
            found[pid] = environment[at + 1 + len(mark) :].partition(b"\0")[0]
    return found


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(roots: Births) -> set[int]:
    """The live ones of these processes, and all their descendants."""
    alive = {pid: status for pid in pids() if (status := _status(pid)) is not None and status.state != b"Z"}
    found = {pid for pid, began in roots if pid in alive and alive[pid].began == began}
    grown = bool(found)
    while grown:
        more = {pid for pid, status in alive.items() if status.parent in found} - found
        found, grown = found | more, bool(more)
    return found


def birth(pid: int) -> tuple[int, int]:
    """Identify a process by pid and start time; no later process has both."""
    status = _status(pid)
    return pid, -1 if status is None else status.began


def _status(pid: int) -> _Status | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return _Status(fields[0], int(fields[1]), int(fields[19])) if len(fields) > 19 else None


def send(pid: int, number: int) -> bool:
    """Send a signal. Returns False without permission; a process that is gone is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def birth_line(pid: int, owner: str) -> bytes:
    """Describe a forked process: itself, its attempt, its parent. Short enough for one atomic write."""
    return b"%d %d %s %d\n" % (*birth(pid), owner.encode(), os.getppid())


def read_birth(line: bytes) -> tuple[int, int]:
    pid, began = line.split()[:2]
    return int(pid), int(began)


def _end_all(mark: bytes, born: Births) -> None:
    deadline, number = time.monotonic() + GRACE_SECONDS, signal.SIGTERM
    for _ in range(ROUNDS):
        alive = set(marked(mark)) | descendants(born)
        if not alive:
            return
        if number == signal.SIGTERM or time.monotonic() > deadline:
            for pid in alive:
                send(pid, number)
            number = signal.SIGKILL
        time.sleep(0.05)


def _dismissed(driver: tuple[int, int], born: Births) -> bool:
    """Wait for the driver. False if it died without `quit`."""
    waiting, patience = select.poll(), None
    waiting.register(0, select.POLLIN)
    try:
        waiting.register(os.pidfd_open(driver[0]), select.POLLIN)
    except ProcessLookupError:
        patience = 0
    except (OSError, AttributeError):
        pass  # an old kernel: rely on the end of stdin
    if birth(driver[0]) != driver:
        # It died before this started. Stdin might never end: forked processes keep the other end open.
        patience = 0
    pending = b""
    while True:
        ready = waiting.poll(patience)
        if any(fd == 0 for fd, _ in ready):
            read = os.read(0, 65536)
            if not read:
                return False
            *lines, pending = (pending + read).split(b"\n")
            if b"quit" in lines:
                return True
            born |= {read_birth(line) for line in lines}
        elif ready or patience == 0:
            return False


def main() -> None:
    born: Births = set()
    with contextlib.suppress(KeyboardInterrupt):
        if not _dismissed((int(sys.argv[1]), int(sys.argv[2])), born):
            _end_all(sys.argv[3].encode(), born)


if __name__ == "__main__":
    main()
