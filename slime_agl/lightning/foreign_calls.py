"""Detect model calls from one attempt to another attempt's address.

They show that executions share a client or an endpoint, so their turns would train in the wrong execution. Such a call
is refused before any byte is sent, and the attempt that made it fails.

A socket that connects to the gateway gets a class that reads each request line and compares the attempt in its path
with the sender's context variable. This works for any client library, connection pool, task or thread. Ignored: code
without an attempt's context (a pool thread without one) and code of an attempt that ended normally (a helper task that
the first execution started for all). Not detected: TLS, uvloop in an agent's own thread, other processes, and mixed
histories sent to the right address.
"""

from __future__ import annotations

import errno
import functools
import logging
import re
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from slime_agl.lightning.failures import agent_stack
from slime_agl.lightning.owner import Name, Owner, current

logger = logging.getLogger(__name__)

_REQUEST = re.compile(rb"POST \S*?/rollout/([^/\s]+)/attempt/([^/\s]+)/")


class ForeignCallError(PermissionError):
    """A model call that was sent from one attempt to the address of another."""


class ForeignCalls:
    """Refuses such calls from `install` to `remove`. count: refused calls.

    is_running: tells if the named attempt is running; the gateway handles calls to any other.
    """

    def __init__(self, is_running: Callable[[Name], bool]) -> None:
        self._is_running = is_running
        self._ports: set[int] = set()
        self.count = 0

    def install(self) -> None:
        global _guard
        _guard = self
        _watch_connections()

    def remove(self) -> None:
        global _guard
        if _guard is self:
            _guard = None

    def expect(self, endpoint: str) -> None:
        """Watch connections to this endpoint: `http://host:port/...`."""
        at = urlsplit(endpoint)
        self._ports.add(at.port or {"https": 443}.get(at.scheme, 80))

    def watches(self, address: object) -> bool:
        return isinstance(address, tuple) and len(address) > 1 and address[1] in self._ports

    def check(self, owner: Owner, named: Name) -> None:
        """Raise ForeignCallError if code of one attempt calls another running attempt."""
        if owner.name == named or owner.state == "over" or not self._is_running(named):
            return
        self.count += 1
        message = (
            f"{owner} sent a model call to the address of attempt {named[1]} of rollout {named[0]}, which runs at the "
            "same time: they share a client or an endpoint. The call is refused, since its turn would be trained in "
            "the wrong execution. Keep them in the agent's own object or in local variables, and name the agent's "
            "class, or a factory, as agl.agent"
        )
        if self.count == 1:
            logger.warning("%s (later ones are only counted, in `mixed_calls`)", message)
        kind = ForeignCallError.__name__
        owner.strike(f"{agent_stack(sys._getframe(2))}{kind}: {message}", kind)
        raise ForeignCallError(errno.EPERM, message)


# The guard of the live runners. Global because an audit hook cannot be removed.
_guard: ForeignCalls | None = None


class _WatchedSocket(socket.socket):
    """A socket to the gateway. Without state of its own, so that a plain socket can change to this class."""

    __slots__ = ()

    def send(self, data: Any, *flags: int) -> int:
        self._pass(data)
        return super().send(data, *flags)

    def sendall(self, data: Any, *flags: int) -> None:
        self._pass(data)
        return super().sendall(data, *flags)

    def sendmsg(self, buffers: Iterable, *more: Any) -> int:
        buffers = list(buffers)
        if buffers:
            self._pass(buffers[0])
        return super().sendmsg(buffers, *more)

    def _pass(self, data: Any) -> None:
        try:
            _check(data)
        except ForeignCallError:
            # httpx goes on to read an answer when it could not write, and would wait for one until its timeout.
            with suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)
            raise


def _check(data: Any) -> None:
    owner, guard = current.get(), _guard
    if owner is None or guard is None or data[:5] != b"POST ":
        return
    found = _REQUEST.match(data)
    if found is not None:
        guard.check(owner, (found[1].decode(), found[2].decode()))


def _connecting(event: str, args: tuple[Any, ...]) -> None:
    if event == "socket.connect" and _guard is not None and _guard.watches(args[1]) and type(args[0]) is socket.socket:
        args[0].__class__ = _WatchedSocket


@functools.cache
def _watch_connections() -> None:
    sys.addaudithook(_connecting)
