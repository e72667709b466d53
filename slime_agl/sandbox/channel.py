"""The driver's end of a keeper's socket: requests out, answers in, on one event loop and without a thread."""

from __future__ import annotations

import asyncio
import marshal
import os
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any

from slime_agl.errors import SandboxError
from slime_agl.sandbox.inside.output import OUTPUT_BYTES
from slime_agl.sandbox.inside.wire import ANSWER, CHUNK, DONE, FAILED, JOB_ENDED, LENGTH, WITH_FD, passed, rights

# More than any honest keeper sends.
MOST_BYTES = 4 * OUTPUT_BYTES
CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """fd: belongs to the caller; -1 without one."""

    status: int
    out: bytes
    err: bytes
    fd: int = -1


class Channel:
    """Calls to a keeper. Owned by the event loop that made it.

    name: of the sandbox, for errors. ended: resolved when the keeper is gone.
    """

    def __init__(self, control: socket.socket, name: str) -> None:
        control.setblocking(False)
        self._socket, self._name = control, name
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        self._jobs: dict[int, asyncio.Future[int]] = {}
        self._read, self._fds = bytearray(), deque[int]()
        self._unsent = deque[tuple[bytes, int]]()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(control.fileno(), self._readable)

    async def call(self, op: str, *, fd: int = -1, **fields: Any) -> Answer:
        """Send a request and wait for its answer. fd: stays the caller's.

        Raises:
            SandboxError: the keeper failed at it, or is gone.
        """
        return await self.send(op, fd=fd, **fields)[1]

    def send(self, op: str, *, fd: int = -1, **fields: Any) -> tuple[int, asyncio.Future[Answer]]:
        """Send a request; return its number and its answer to come."""
        if self.ended.done():
            raise SandboxError(f"sandbox {self._name} has ended")
        self._number += 1
        body = marshal.dumps({**fields, "op": op, "number": self._number, "with_fd": fd >= 0})
        answer = self._calls[self._number] = self._loop.create_future()
        self._unsent.append((LENGTH.pack(len(body)) + body, os.dup(fd) if fd >= 0 else -1))
        if len(self._unsent) == 1:
            self._flush()
        return self._number, answer

    def job(self, number: int) -> asyncio.Future[int]:
        """Exit status to come of a detached command."""
        return self._jobs.setdefault(number, self._loop.create_future())

    def close(self) -> None:
        """Close the socket, at which the keeper ends everything. Idempotent."""
        if not self.ended.done():
            self._end("was closed")

    def _flush(self) -> None:
        """Send what is waiting, as far as the socket takes it."""
        while self._unsent:
            data, fd = self._unsent[0]
            try:
                sent = self._socket.sendmsg([data], rights(fd))
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._flush)
                return
            except OSError as error:
                self._end(f"does not listen ({error})")
                return
            if fd >= 0:
                os.close(fd)
            if sent < len(data):
                self._unsent[0] = (data[sent:], -1)
            else:
                self._unsent.popleft()
        self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            data, extra, _, _ = self._socket.recvmsg(CHUNK, socket.CMSG_SPACE(16), CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, extra = b"", []
        self._fds += passed(extra)
        self._read += data
        while not self.ended.done() and len(self._read) >= ANSWER.size:
            number, kind, status, outs, errs = ANSWER.unpack_from(self._read)
            size = ANSWER.size + outs + errs
            if kind not in (DONE, FAILED, WITH_FD, JOB_ENDED) or size > MOST_BYTES:
                return self._end("speaks nonsense: something in it took over its keeper")
            if len(self._read) < size:
                break
            out = bytes(self._read[ANSWER.size : ANSWER.size + outs])
            err = bytes(self._read[ANSWER.size + outs : size])
            del self._read[:size]
            self._settle(number, kind, Answer(status, out, err, self._fds.popleft() if kind == WITH_FD else -1))
        if not data:
            self._end("has ended")

    def _settle(self, number: int, kind: int, answer: Answer) -> None:
        if kind == JOB_ENDED:
            job = self.job(number)
            if not job.done():
                job.set_result(answer.status)
            return
        call = self._calls.pop(number, None)
        if call is None or call.done():  # its caller gave up
            if answer.fd >= 0:
                os.close(answer.fd)
        elif kind == FAILED:
            call.set_exception(SandboxError(f"sandbox {self._name}: {answer.out.decode(errors='replace')}"))
        else:
            call.set_result(answer)

    def _end(self, what: str) -> None:
        if self.ended.done():
            return
        self.ended.set_result(None)
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for fd in [*self._fds, *(fd for _, fd in self._unsent if fd >= 0)]:
            os.close(fd)
        self._fds.clear()
        self._unsent.clear()
        for future in [*self._calls.values(), *self._jobs.values()]:
            if not future.done():
                future.set_exception(SandboxError(f"sandbox {self._name} {what}"))
                future.exception()  # nobody may be waiting
        self._calls.clear()
