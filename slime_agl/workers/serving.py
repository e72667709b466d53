"""A worker's side of its calls, whatever carries them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
Submit = Callable[[Coroutine[Any, Any, T]], "Future[T]"]


async def hop(submit: Submit[T], coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop of another thread and wait for it on this one.

    Cancelling it cancels the coroutine and waits for its cleanup, which wrapping the future alone would not; an error
    raised by the cleanup is raised here.
    submit: starts a coroutine on the other loop.
    """
    loop, unwound = asyncio.get_running_loop(), asyncio.Event()
    raised: list[Exception] = []

    async def announced() -> T:
        try:
            return await coroutine
        except Exception as error:
            raised.append(error)
            raise
        finally:
            loop.call_soon_threadsafe(unwound.set)

    future = submit(announced())
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        await unwound.wait()
        if raised:
            raise raised[0] from None
        raise
