"""Workers as plain subprocesses of this one: for a machine without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from slime_agl.workers import frames
from slime_agl.workers.frames import Frame, Kind
from slime_agl.workers.link import CancelledThere, Lane, Plan, WorkerDied, unwound


class Subprocess:
    """A link to a child process, over a socket pair. Lives on the event loop that made it."""

    def __init__(
        self, plan: Plan, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name, self.node = plan.name, platform.node()
        self._process, self._reader, self._writer = process, reader, writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._death: WorkerDied | None = None
        self._listening = asyncio.ensure_future(self._listen())

    @property
    def dead(self) -> bool:
        return self._death is not None

    async def call(self, method: str, /, *arguments: Any, lane: Lane = "control") -> Any:
        if self._death is not None:
            raise self._death
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send(number, Kind.CALL, (method, arguments))
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._send(number, Kind.CANCEL)
            await unwound(answer)
            raise
        finally:
            self._waiting.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()

    async def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        await self._listening

    def _send(self, number: int, kind: Kind, value: Any = None) -> None:
        if self._death is None:
            self._writer.writelines(frames.packed(number, kind, value))

    def _take(self, frame: Frame) -> None:
        answer = self._waiting.get(frame.number)
        if answer is None or answer.done():
            return
        try:
            value = frame.load()
        except Exception as error:  # what unpickling a stranger's classes raises
            answer.set_exception(error)
            return
        if frame.kind is Kind.RESULT:
            answer.set_result(value)
        elif frame.kind is Kind.CANCELLED:
            answer.set_exception(CancelledThere(f"a call was cancelled within worker {self.name}"))
        else:
            answer.set_exception(value)

    async def _listen(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self._take(await frames.read(self._reader))
        # It may have closed its end and still run: nobody hears it any more.
        self._process.kill()
        status = await asyncio.to_thread(self._process.wait)
        self._writer.close()
        self._death = WorkerDied(f"worker {self.name} (process {self._process.pid}) ended: {_end(status)}")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._death)


class Subprocesses:
    """Starts workers on this machine, with this process's interpreter, paths and environment."""

    async def start(self, plans: Sequence[Plan]) -> list[Subprocess]:
        links: list[Subprocess] = []
        try:
            for plan in plans:
                links.append(await self._started(plan))
        except BaseException:  # nobody else knows of these
            await asyncio.gather(*(link.kill() for link in links))
            raise
        return links

    async def _started(self, plan: Plan) -> Subprocess:
        ours, theirs = socket.socketpair()
        with theirs:
            # Nothing is awaited from the process's start to its link, so that a cancellation loses no process.
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "slime_agl.workers.child", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                )
            except OSError as error:
                writer.close()
                raise WorkerDied(f"worker {plan.name}: no process can be started: {error}") from error
        writer.writelines(frames.packed(0, Kind.CALL, (plan, sys.path, logging.getLogger().getEffectiveLevel())))
        return Subprocess(plan, process, reader, writer)


def _end(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
