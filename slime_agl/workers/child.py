"""A worker that is a plain subprocess: `python -m slime_agl.workers.child FD`. FD: its end of a socket pair.

The first message is the plan, where to import from and the level of log messages to show; each further one a call. When
the other end closes, whoever started it has ended, and so does this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from typing import Any

from slime_agl.workers import frames
from slime_agl.workers.frames import Frame, Kind
from slime_agl.workers.link import Plan, make_target

STOP_SECONDS = 15.0


class Child:
    """Answers calls until the other end closes.

    target: the object whose methods they name, or the exception that making it raised.
    """

    def __init__(self, name: str, target: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._name, self._target, self._reader, self._writer = name, target, reader, writer
        self._calls: dict[int, asyncio.Task[tuple[Kind, Any]]] = {}
        self._answers: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self._take(await frames.read(self._reader))
        for task in self._calls.values():
            task.cancel()
        if self._answers:
            await asyncio.wait(self._answers, timeout=STOP_SECONDS)
        if hasattr(self._target, "stop"):
            with contextlib.suppress(Exception):  # whoever would be told has gone
                await asyncio.wait_for(self._target.stop(), STOP_SECONDS)

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.CALL:
            self._calls[frame.number] = asyncio.ensure_future(self._outcome(frame))
            answer = asyncio.ensure_future(self._answer(frame.number))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)
        elif frame.number in self._calls:
            self._calls[frame.number].cancel()

    async def _answer(self, number: int) -> None:
        """Answer a call once it has ended. Not in the call's own task: one cancelled before it began runs no line."""
        call = self._calls[number]
        await asyncio.wait({call})
        del self._calls[number]
        if call.cancelled():
            pieces = frames.packed(number, Kind.CANCELLED)
        else:
            kind, value = call.result()
            try:
                pieces = frames.packed(number, kind, value)
            except Exception as error:  # what pickling a stranger's classes raises
                pieces = frames.packed(number, Kind.ERROR, frames.portable(error, self._name))
        with contextlib.suppress(ConnectionError):
            self._writer.writelines(pieces)
            await self._writer.drain()

    async def _outcome(self, frame: Frame) -> tuple[Kind, Any]:
        """What a call returned or raised."""
        try:
            if isinstance(self._target, BaseException):
                raise self._target
            method, arguments = frame.load()
            return Kind.RESULT, await getattr(self._target, method)(*arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the edge of the process: the caller is to hear of everything
            return Kind.ERROR, frames.portable(error, self._name)


def _made(plan: Plan) -> Any:
    try:
        return make_target(plan)
    except BaseException as error:  # it is raised by each call
        return error


async def _serve(ours: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=ours)
    plan, sys.path[:], level = (await frames.read(reader)).load()
    os.environ.update(plan.environment)
    logging.basicConfig(level=level, format=f"[{plan.name}] %(levelname)s %(name)s: %(message)s")
    # Before any call is read: what they unpickle may import the same modules in another thread.
    await Child(plan.name, _made(plan), reader, writer).serve()


def main() -> None:
    # Ctrl-C in a terminal reaches the whole group: whoever started us decides what ends, and when.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))
    logging.shutdown()
    os._exit(0)  # threads of agents that do not end would keep the process


if __name__ == "__main__":
    main()
