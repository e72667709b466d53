"""The event loop of a runtime, and the objects that live as long as it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from slime_agl import garbage
from slime_agl.errors import SlimeAglError
from slime_agl.loops import LoopThread, Work
from slime_agl.runtime import Closable, K

logger = logging.getLogger(__name__)

INTERRUPT_SECONDS = 30.0
STOP_SECONDS = 120.0

T = TypeVar("T")


class RuntimeLoop:
    """Runs a runtime's coroutines on a thread of their own, from `start` to `end`."""

    def __init__(self) -> None:
        self._thread: LoopThread | None = None
        self._kept: dict[type[Closable], Closable] = {}
        self._collector: tuple[int, int, int] | None = None
        self.running = False

    def start(self, thread: LoopThread) -> None:
        self._thread = thread
        thread.start()
        self.running = True

    def settle(self) -> None:
        """Spare the garbage collector all that starting has loaded, until `end`."""
        self._collector = garbage.relax()

    def close(self, close: Callable[[], Work[None]]) -> None:
        """Close everything kept, then run `close`; log what prevents it. Nothing can be run from here on.

        close: ends the runtime's own parts.
        """
        self.running = False
        try:
            self._wait(self._closed(close), STOP_SECONDS)
        except TimeoutError:
            logger.error("the agents have not ended within %g s; what blocks them is left behind", STOP_SECONDS)
        except SlimeAglError as error:
            logger.error("the agents cannot be ended: %s", error)

    def end(self) -> None:
        """End the thread."""
        if self._collector is not None:
            garbage.restore(self._collector)
            self._collector = None
        if self._thread is not None:
            self._thread.stop()

    def run(self, coroutine: Work[T]) -> T:
        """Run a coroutine and wait for it. An interrupt cancels it and waits for its cleanup."""
        if not self.running:
            coroutine.close()
            raise SlimeAglError("the runtime is stopped")
        return self._wait(coroutine)

    def submit(self, coroutine: Work[T]) -> Future[T]:
        """Start a coroutine, for a caller on another loop (asyncio.wrap_future)."""
        return self._threaded(coroutine).submit(coroutine)

    def keep(self, kind: type[K], make: Callable[[], K]) -> K:
        """Return the one object of a kind, made on first use and closed before the runtime stops."""
        if kind not in self._kept:
            self._kept[kind] = make()
        return self._kept[kind]  # type: ignore[return-value]

    async def _closed(self, close: Callable[[], Work[None]]) -> None:
        for kept in self._kept.values():
            await kept.close()
        await close()

    def _threaded(self, coroutine: Work[object]) -> LoopThread:
        if self._thread is None:
            coroutine.close()
            raise SlimeAglError("the runtime is not started")
        return self._thread

    def _wait(self, coroutine: Work[T], seconds: float | None = None) -> T:
        done = threading.Event()
        future = self._threaded(coroutine).submit(_announced(coroutine, done))
        try:
            return future.result(seconds)
        except KeyboardInterrupt:
            future.cancel()
            done.wait(INTERRUPT_SECONDS)
            raise


async def _announced(coroutine: Work[T], done: threading.Event) -> T:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        # It would silently end the trainer's process.
        raise SlimeAglError(
            f"{type(error).__name__} was raised by code that runs for a step, outside any agent"
        ) from error
    finally:
        done.set()
