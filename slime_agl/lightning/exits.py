"""Keep agents from ending the event loop that they share."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Generator
from types import FrameType, TracebackType
from typing import Any, TypeVar

from slime_agl.lightning.failures import agent_traceback
from slime_agl.lightning.owner import Owner, current

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RUN = asyncio.Handle._run.__code__


class SharedLoop(asyncio.SelectorEventLoop):
    """The loop of all agents, which none of them can stop.

    Here `asyncio.all_tasks` lists the tasks that agents started, but not those that run the agents: an agent that
    cancels all tasks cancels no step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_task_factory(_task_of_owner)

    def stop(self) -> None:
        owner = current.get()
        if owner is not None:
            raise RuntimeError(f"{owner} called stop() on the event loop that all agents share")
        super().stop()


def _task_of_owner(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
) -> asyncio.Task[T]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    owner = current.get() if context is None else context.get(current)
    if owner is None:
        asyncio._unregister_task(task)
    else:
        owner.tasks.add(task)
    return task


def mend_streams() -> None:
    """Replace standard streams that an agent has closed; the next log line or progress bar would fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if getattr(stream, "closed", False):
            first = getattr(sys, f"__{name}__")
            setattr(sys, name, open(os.devnull, "w") if first is None or first.closed else first)


class Exits:
    """Handles SystemExit and KeyboardInterrupt that reach the loop. count: how many did."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, error: BaseException) -> None:
        """Fail the attempt whose task or callback raised it. Called on the loop's thread."""
        self.count += 1
        owner = owner_of_traceback(error.__traceback__)
        if owner is not None and owner.state == "running":
            owner.strike(agent_traceback(error), type(error).__name__)
            return
        logger.warning(
            "%s raised %s on the event loop of the agents, which goes on\n%s",
            owner or "code of no attempt",
            type(error).__name__,
            agent_traceback(error),
        )


def owner_of_traceback(trace: TracebackType | None) -> Owner | None:
    """Find the attempt in whose context the innermost event loop callback ran."""
    found: Owner | None = None
    while trace is not None:
        found = _owner_of(trace.tb_frame) or found
        trace = trace.tb_next
    return found


def owner_of_frame(frame: FrameType | None) -> Owner | None:
    """The same for a thread that is at a frame."""
    while frame is not None:
        if (found := _owner_of(frame)) is not None:
            return found
        frame = frame.f_back
    return None


def _owner_of(frame: FrameType) -> Owner | None:
    if frame.f_code is not _RUN:
        return None
    # From outside, a callback's context can only be read from its handle.
    context = getattr(frame.f_locals.get("self"), "_context", None)
    return None if context is None else context.get(current)
