"""Event loops in threads that survive what runs on them, and waits that always end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from slime_agl.errors import SlimeAglError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Coroutine[Any, Any, T]
Exit = SystemExit | KeyboardInterrupt
JOIN_SECONDS = 30.0


class BlockedTooLong(BaseException):
    """Raised inside code that blocks a shared loop. Not an Exception, which that code might catch and go on."""


class LoopThread:
    """Runs an event loop in a daemon thread, from `start` to `stop`.

    asyncio ends a loop when a task or callback raises SystemExit or KeyboardInterrupt, or something calls `stop` on it.
    This loop is shared, so it is entered again. If its thread dies nevertheless, all waiters get an error.

    loop: defaults to asyncio's own kind. exited: called on the loop's thread, between two rounds, with the exception
    that ended a round; by default the exception is logged.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        exited: Callable[[Exit], None] | None = None,
    ) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self._name, self._exited = name, exited or self._log
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._lock = threading.Lock()
        self._waited_for: set[Future[Any]] = set()
        self._stopping = False
        self._dead: SlimeAglError | None = None

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def inside(self) -> bool:
        """True on this very thread, where waiting would deadlock."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Work[T]) -> T:
        """Run a coroutine on the loop from another thread and wait. Raises as `submit` and as the coroutine does."""
        return self.submit(coroutine).result()

    def submit(self, coroutine: Work[T]) -> Future[T]:
        """Start a coroutine on the loop, from any thread.

        Raises:
            SlimeAglError: the thread is dead. The future raises it too if the thread dies later.
        """
        with self._lock:
            if self._dead is not None:
                coroutine.close()
                raise self._dead
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
            self._waited_for.add(future)
        future.add_done_callback(self._answered)
        return future

    def give_up(self, reason: str) -> None:
        """Fail all waiters and every later `submit`: the loop will not run again. May be called from any thread."""
        logger.critical("the event loop of the thread %s is given up: %s", self._name, reason)
        self._tell_all(SlimeAglError(reason))

    def stop(self) -> bool:
        """End the loop and its thread. Returns False if the loop is blocked; it is left behind with what blocks it."""
        self._stopping = True
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            logger.error(
                "the thread %s has not ended %g s after it was told to; it is left behind", self._name, JOIN_SECONDS
            )
            return False
        try:
            self.loop.close()
        except (OSError, RuntimeError) as error:
            # Closing needs the very thing that broke down.
            logger.debug("the loop of the thread %s cannot be closed", self._name, exc_info=error)
        return True

    def _log(self, error: Exit) -> None:
        logger.error(
            "%s was raised on the event loop of the thread %s, which goes on",
            type(error).__name__,
            self._name,
            exc_info=error,
        )

    def _answered(self, future: Future[Any]) -> None:
        with self._lock:
            self._waited_for.discard(future)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        fault: BaseException | None = None
        try:
            while not self._stopping:
                self._round()
        except BaseException as error:  # the edge of the thread; mostly a selector that something closed
            fault = error
            logger.critical("the event loop of the thread %s broke down", self._name, exc_info=error)
        finally:
            self._die(fault)

    def _round(self) -> None:
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            self._exited(error)
            return
        except BlockedTooLong:
            # Raised a moment too late: the blocking code had just ended.
            return
        if not self._stopping:
            logger.warning("somebody stopped the event loop of the thread %s, which goes on", self._name)

    def _die(self, fault: BaseException | None) -> None:
        what = f"{type(fault).__name__}: {fault}" if fault is not None else "it was stopped"
        error = SlimeAglError(f"the thread {self._name} has ended ({what}), nothing can be run on it")
        error.__cause__ = fault
        self._tell_all(error)

    def _tell_all(self, error: SlimeAglError) -> None:
        with self._lock:
            self._dead = self._dead or error
            waited_for = list(self._waited_for)
        for future in waited_for:
            if not future.done():
                future.set_exception(error)


async def ended(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Cancel tasks and wait until they have unwound.

    A task that is already being cancelled is not cancelled again: that would interrupt its cleanup.
    """
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def to_its_end(work: Work[None]) -> None:
    """Await work that has to finish: cancelling the caller again does not interrupt it."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    task.result()
