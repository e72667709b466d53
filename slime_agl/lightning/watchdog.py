"""Detect code that blocks the agents' event loop, and report which and where."""

from __future__ import annotations

import asyncio
import ctypes
import linecache
import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from slime_agl.lightning.exits import owner_of_frame
from slime_agl.lightning.owner import Owner
from slime_agl.loops import BlockedTooLong

logger = logging.getLogger(__name__)

# While the loop is blocked, every other agent, deadline and cancellation waits.
BLOCKED_SECONDS = 5.0
INTERRUPTS = 6
_OURS = str(Path(__file__).parents[1]) + os.sep
_STDLIB = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


@dataclass(frozen=True, slots=True)
class Blockage:
    """The code that blocks the loop. owner: its attempt, or None. place: `file:line in function`."""

    owner: Owner | None
    place: str
    line: str


class LoopWatchdog:
    """Pings an event loop from a thread of its own, every `seconds`, and logs where the loop is if no answer comes.

    After another `limit` seconds, the deadline of an attempt, it interrupts the attempt that blocks the loop, since a
    blocked loop cannot enforce deadlines. None: never interrupt. hopeless: called with the reason if the loop stays
    blocked even then, as in a call that never returns. count, seconds_blocked: number and total duration of blockages.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread_id: int,
        *,
        seconds: float = BLOCKED_SECONDS,
        seen: Callable[[Blockage], None] = lambda blockage: None,
        limit: float | None = None,
        hopeless: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._loop, self._thread_id, self._seconds, self._seen = loop, thread_id, seconds, seen
        self._limit, self._hopeless = limit, hopeless
        self._stopping = threading.Event()
        self._answered = threading.Event()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._watch, name="slime-agl-watchdog", daemon=True)
        self.count = 0
        self.seconds_blocked = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._answered.set()

    def _watch(self) -> None:
        while not self._stopping.wait(self._seconds):
            self._answered.clear()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed
            if not self._answered.wait(self._seconds):
                self._tell()
                self._end_blockage()
                self._answered.wait()
                self.seconds_blocked += time.monotonic() - asked

    def _end_blockage(self) -> None:
        """Wait for the loop; from the limit on interrupt it several times, then give it up."""
        if self._limit is None or self._answered.wait(self._limit):
            return
        for _ in range(INTERRUPTS):
            blockage = self._look()
            if blockage is not None and blockage.owner is not None:
                _raise_in(self._thread_id, BlockedTooLong)
            if self._answered.wait(self._seconds):
                return
        blockage = self._look()
        if blockage is not None:
            self._hopeless(
                f"{blockage.owner or 'code of no attempt'} has blocked the event loop of all agents for more than "
                f"{self._limit:g} s (agl.runners.timeout_seconds) at {blockage.place}: `{blockage.line}`, and cannot "
                "be interrupted there; use an async call, or set agl.runners.mode to `thread`"
            )

    def _tell(self) -> None:
        blockage = self._look()
        if blockage is None:
            return
        self.count += 1
        if blockage.place not in self._told:
            self._told.add(blockage.place)
            logger.warning(
                "%s has blocked the event loop of all agents for %g s at %s: `%s`; meanwhile no other agent, deadline "
                "or cancel moves. Await an async call, or `asyncio.to_thread`, there, or set agl.runners.mode to "
                "`thread` (each place is told once, all are counted in `blocked_loops`)",
                blockage.owner or "code of no attempt",
                self._seconds,
                blockage.place,
                blockage.line,
            )
        self._seen(blockage)

    def _look(self) -> Blockage | None:
        frame = sys._current_frames().get(self._thread_id)
        if frame is None or self._answered.is_set():
            return None
        stands = _agents_own(frame)
        path, number = stands.f_code.co_filename, stands.f_lineno
        line = linecache.getline(path, number).strip()
        return Blockage(owner_of_frame(frame), f"{path}:{number} in {stands.f_code.co_name}", line)


def _raise_in(thread_id: int, error: type[BaseException]) -> None:
    """Raise `error` at a thread's next Python bytecode. A C call that does not return is not interrupted."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))


def _agents_own(frame: FrameType) -> FrameType:
    """The innermost frame of the user's own code, else of an installed package, else of anything."""
    frames = []
    at: FrameType | None = frame
    while at is not None:
        frames.append((_distance(at.f_code.co_filename), len(frames), at))
        at = at.f_back
    return min(frames)[2]


def _distance(path: str) -> int:
    """Rank code by its distance from the user's own."""
    if path.startswith((_OURS, "<")):
        return 3
    if path.startswith(_INSTALLED):
        return 1
    return 2 if path.startswith(_STDLIB) else 0
