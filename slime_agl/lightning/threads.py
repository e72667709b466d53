"""A thread per attempt, for agents that block."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from slime_agl.lightning._agl import AnyAgent

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ThreadedAgent(AnyAgent):
    """Wraps an agent as an async one and runs each rollout in a daemon thread of its own.

    A sync agent is called in the thread, an async one gets an event loop there. The thread has the caller's context
    variables, so what the agent emits is attributed.

    A thread cannot be stopped: if the awaiting task is cancelled, a sync agent's thread is left behind, and an async
    agent's task is cancelled in its own loop.
    """

    def __init__(self, agent: AnyAgent) -> None:
        super().__init__()
        self.agent = agent
        self._left: asyncio.Future | None = None

    @property
    def left_behind(self) -> bool:
        """True if the thread of the last rollout still runs although the rollout was cancelled."""
        return self._left is not None and not self._left.done()

    async def thread_ended(self, seconds: float) -> None:
        """Wait up to `seconds` for a thread that was left behind."""
        if self._left is not None:
            await asyncio.wait({self._left}, timeout=seconds)

    def is_async(self) -> bool:
        return True

    def set_runner(self, runner: Any) -> None:
        super().set_runner(runner)
        self.agent.set_runner(runner)

    async def training_rollout_async(self, task: object, resources: Any, rollout: Any) -> Any:
        if self.agent.is_async():
            return await self._in_loop(self.agent.training_rollout_async, task, resources, rollout)
        return await self._in_thread(lambda: self.agent.training_rollout(task, resources, rollout))

    async def validation_rollout_async(self, task: object, resources: Any, rollout: Any) -> Any:
        if self.agent.is_async():
            return await self._in_loop(self.agent.validation_rollout_async, task, resources, rollout)
        return await self._in_thread(lambda: self.agent.validation_rollout(task, resources, rollout))

    async def _in_loop(self, method: Callable[..., Awaitable[T]], *args: object) -> T:
        running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[object]]] = []
        cancelled = threading.Event()

        async def main() -> T:
            running.append((asyncio.get_running_loop(), asyncio.current_task()))  # type: ignore[arg-type]
            if cancelled.is_set():
                raise asyncio.CancelledError
            return await method(*args)

        try:
            return await self._in_thread(lambda: asyncio.run(main()))
        except asyncio.CancelledError:
            cancelled.set()
            for loop, task in running:
                _call_in(loop, task.cancel)
            raise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()

        def body() -> None:
            try:
                report = partial(ended.set_result, work())
            except StopIteration as error:
                # A future refuses StopIteration; as in a generator it becomes a RuntimeError.
                report = partial(ended.set_exception, _caused(RuntimeError("agent raised StopIteration"), error))
            except BaseException as error:
                # The edge of the thread: whatever ended the agent, SystemExit included, goes to the waiter.
                report = partial(ended.set_exception, error)
            _call_in(loop, lambda: None if ended.cancelled() else report())

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(body,), name="slime-agl-agent", daemon=True).start()
        try:
            # Shielded, so that the future still tracks the thread after a cancellation.
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not ended.done():
                self._left = ended
                ended.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        # The loop is closed, so nothing waits for this any more.
        logger.debug("an agent's thread outlived the loop that started it")
