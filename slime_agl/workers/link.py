"""How a fleet reaches one worker, over whatever carries the calls."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from slime_agl.errors import SlimeAglError

logger = logging.getLogger(__name__)

# Calls of one lane never wait for those of another: `run` lasts as long as agents do, `bulk` moves much data.
Lane = Literal["run", "control", "bulk"]


class WorkerDied(SlimeAglError):
    """The process of a worker ended, or was given up. What it was doing may be done again elsewhere."""

    boundary = "worker"


class CancelledThere(SlimeAglError):
    """A call was cancelled in the worker, not by its caller."""

    boundary = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a worker is made of; it is pickled once.

    target: import path, `package.module:Class`, of the object that answers the calls. arguments: its keyword arguments.
    name: of the worker, in logs and request ids. slots: most calls on the lane `run` at a time. environment: variables
    set before anything is imported.
    """

    name: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    slots: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


class Link(Protocol):
    """One worker. Its target's methods are coroutine functions, called by name."""

    @property
    def name(self) -> str: ...

    @property
    def node(self) -> str:
        """The machine it runs on, by a name that two workers share when they share the machine."""
        ...

    @property
    def dead(self) -> bool: ...

    async def call(self, method: str, /, *arguments: Any, lane: Lane = "control") -> Any:
        """Call a method and return its result. Cancelling it cancels the method, and waits until it has unwound; an
        error that the method then raises is raised here.

        Raises:
            WorkerDied: the process ended before it answered.
            Exception: what the method raised, with the worker's traceback as a note.
        """
        ...

    async def kill(self) -> None:
        """End the process at once. Calls that are under way raise WorkerDied. May be called again."""
        ...


class Transport(Protocol):
    """Starts workers."""

    async def start(self, plans: Sequence[Plan]) -> Sequence[Link]:
        """Start one for each plan, without waiting until its target is made: its first call waits for that.

        Raises:
            ConfigError: there is no room for so many.
            WorkerDied: a process cannot be started.
        """
        ...


def make_target(plan: Plan) -> Any:
    """The object that a plan describes, in the process it is meant for."""
    module, _, name = plan.target.partition(":")
    return getattr(importlib.import_module(module), name)(**plan.arguments)


async def unwound(answer: asyncio.Future[Any]) -> None:
    """Wait for the answer of a call that was cancelled. Raises the error that the method ended with, if it did."""
    await asyncio.wait({answer})
    error = None if answer.cancelled() else answer.exception()
    if error is not None and not isinstance(error, CancelledThere | WorkerDied):
        raise error


async def ended(link: Link, seconds: float) -> None:
    """Have a worker stop, and kill it, at the latest after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await link.call("stop")
    except (SlimeAglError, TimeoutError) as error:
        logger.warning("worker %s did not stop by itself: %s", link.name, error or "no answer")
    await link.kill()
