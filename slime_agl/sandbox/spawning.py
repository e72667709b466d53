"""Start processes from a thread that lasts, and wait for their end without polling."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Helpers:
    """Threads for what blocks.

    starts: one thread. Processes that shall die with their parent die with the *thread* that started them, so it ends
    only with this process. files: for writing, packing and removing files.
    """

    def __init__(self) -> None:
        self.starts = ThreadPoolExecutor(1, thread_name_prefix="agl-sandbox-starts")
        self.files = ThreadPoolExecutor(4, thread_name_prefix="agl-sandbox-files")

    def close(self) -> None:
        """End the threads, and with them what is left of processes tied to them."""
        self.starts.shutdown(wait=False)
        self.files.shutdown(wait=False)


async def in_thread(threads: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a thread. Waits for it also when cancelled, so that what it uses may be taken away then."""
    running = asyncio.get_running_loop().run_in_executor(threads, function, *arguments)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise


def start(argv: Sequence[str], fds: Sequence[int], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own; what it says goes to a file."""
    with log.open("wb") as file:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=env,
            pass_fds=tuple(fds),
            start_new_session=True,
            cwd="/",
        )


async def gone(process: subprocess.Popen[bytes]) -> None:
    """Wait until a child has ended, and reap it."""
    if process.poll() is not None:
        return
    if not hasattr(os, "pidfd_open"):
        await asyncio.get_running_loop().run_in_executor(None, process.wait)
        return
    fd = os.pidfd_open(process.pid)
    try:
        await readable(fd)
    finally:
        os.close(fd)
    process.wait()


async def readable(fd: int) -> None:
    """Wait until a descriptor can be read; that of a process can when it has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[Any] = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)
