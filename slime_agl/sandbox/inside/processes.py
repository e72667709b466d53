"""Find and end processes by their parents and by entries of their environment. Linux only; elsewhere none are found."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable

ROUNDS = 200


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if sys.platform == "linux" else []


def marked(mark: bytes) -> set[int]:
    """Pids of the processes whose environment holds an entry that begins with `mark`."""
    found = set()
    for pid in pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if b"\0" + mark in b"\0" + file.read():
                    found.add(pid)
        except OSError:
            continue  # gone, or another user's
    return found & parents().keys()


def parents() -> dict[int, int]:
    """The parent of every process that is not a zombie."""
    found = {}
    for pid in pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) > 1 and fields[0] not in b"ZX":
            found[pid] = int(fields[1])
    return found


def descendants(roots: set[int]) -> set[int]:
    """The live ones among these processes, and all their descendants."""
    of = parents()
    found = roots & of.keys()
    grown = bool(found)
    while grown:
        more = {pid for pid, parent in of.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def end_all(find: Callable[[], set[int]]) -> bool:
    """Kill the processes that `find` returns until it returns none. They are stopped first, so that none forks on."""
    stopped: set[int] = set()
    for _ in range(ROUNDS):
        alive = find()
        if not alive:
            return True
        if new := alive - stopped:
            for pid in new:
                send(pid, signal.SIGSTOP)
            stopped |= new
            continue
        for pid in alive:
            send(pid, signal.SIGKILL)
        _wait_gone(sorted(alive)[:256])
        stopped.clear()
    return not find()


def _wait_gone(some: list[int]) -> None:
    waiting, opened = select.poll(), []
    for pid in some:
        try:
            opened.append(os.pidfd_open(pid))
            waiting.register(opened[-1], select.POLLIN)
        except OSError:
            continue
    if not opened:
        time.sleep(0.01)  # a kernel without such descriptors
    deadline = time.monotonic() + 1.0
    while opened and (left := deadline - time.monotonic()) > 0:
        for fd, _ in waiting.poll(1000 * left):
            waiting.unregister(fd)
            opened.remove(fd)
            os.close(fd)
    for fd in opened:
        os.close(fd)
