"""What the commands of a sandbox write, within bounds."""

from __future__ import annotations

OUTPUT_BYTES = 1 << 20


class Output:
    """What a command writes to one pipe: the beginning and the end of it, the rest is counted."""

    def __init__(self, most: int = OUTPUT_BYTES) -> None:
        self._most = most
        self._head, self._end, self._dropped = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        room = self._most // 2 - len(self._head)
        self._head += data[:room]
        self._end += data[room:]
        if len(self._end) > self._most:
            self._shorten()

    def _shorten(self) -> None:
        over = max(0, len(self._end) - self._most // 2)
        del self._end[:over]
        self._dropped += over

    def text(self) -> bytes:
        self._shorten()
        note = b"\n... %d bytes left out ...\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + note + bytes(self._end)


class Job:
    """A command. outputs: by the pipe they come from; both stand in for one another if they go to one pipe."""

    def __init__(self, number: int, pid: int, detached: bool) -> None:
        self.number, self.pid, self.detached = number, pid, detached
        self.status: int | None = None
        self.out, self.err = Output(), Output()
