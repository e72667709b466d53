"""Threads that render and encode. Each attempt gets one at a time, so that its megabytes delay nobody else's turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
THREADS = 2


class Encoders:
    """Runs work of many owners on few threads: sequentially per owner, round-robin across owners."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="agl-encode")
        self._free = threads
        self._busy: set[Hashable] = set()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, owner: Hashable, work: Callable[[], T]) -> T:
        """Run `work` on a thread and return its result."""
        if self._free and owner not in self._busy:
            self._take(owner)
        else:
            await self._turn(owner)
        loop = asyncio.get_running_loop()
        try:
            done = loop.run_in_executor(self._pool, work)
        except RuntimeError:  # closed
            self._release(owner)
            raise
        # Work continues after its caller is cancelled; its thread is free only once it ends.
        done.add_done_callback(lambda _: self._release(owner))
        return await asyncio.shield(done)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, owner: Hashable) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._release(owner)
            raise

    def _take(self, owner: Hashable) -> None:
        self._busy.add(owner)
        self._free -= 1

    def _release(self, owner: Hashable) -> None:
        self._busy.discard(owner)
        self._free += 1
        for waiting in list(self._waiting):
            if not self._free:
                return
            if waiting not in self._busy:
                self._grant(waiting)

    def _grant(self, owner: Hashable) -> None:
        turns = self._waiting.pop(owner)
        while turns:
            turn = turns.popleft()
            if not turn.done():
                self._take(owner)
                turn.set_result(None)
                break
        if turns:
            self._waiting[owner] = turns  # behind all others
