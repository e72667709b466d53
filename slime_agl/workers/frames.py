"""Messages over a stream between two processes of ours: pickles, with arrays beside them instead of in them.

Only a parent and the child it started speak this, over a socket pair that nobody else can open.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    CALL = 0
    CANCEL = 1
    RESULT = 2
    ERROR = 3
    CANCELLED = 4


_HEAD = struct.Struct("<QBI")
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Frame:
    """A message as it arrived. number: of the call that it belongs to."""

    number: int
    kind: Kind
    pieces: list[bytes]

    def load(self) -> Any:
        """The value. Raises whatever unpickling raises, as when a class cannot be imported here."""
        return pickle.loads(self.pieces[0], buffers=self.pieces[1:])


def packed(number: int, kind: Kind, value: Any = None) -> list[bytes | memoryview]:
    """The pieces of a message, in the order they are written. Buffers of arrays are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    pieces: list[bytes | memoryview] = [body, *(buffer.raw() for buffer in buffers)]
    lengths = b"".join(_LENGTH.pack(len(piece)) for piece in pieces)
    return [_HEAD.pack(number, kind, len(pieces)) + lengths, *pieces]


async def read(reader: asyncio.StreamReader) -> Frame:
    """The next message.

    Raises:
        asyncio.IncompleteReadError, ConnectionError: the other side has ended.
    """
    number, kind, count = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    lengths = await reader.readexactly(_LENGTH.size * count)
    pieces = [await reader.readexactly(length) for (length,) in _LENGTH.iter_unpack(lengths)]
    return Frame(number, Kind(kind), pieces)


def portable(error: BaseException, where: str) -> BaseException:
    """An exception as another process can raise it: itself when it survives pickling, else its words.

    An exit is told in words too: it was to end that process, not this one. The traceback travels as a note, as a pickle
    keeps none. where: whose traceback it is.
    """
    error.add_note(f"in {where}:\n{''.join(traceback.format_exception(error)).rstrip()}")
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a stranger's __reduce__ or __init__ does
        copy = None
    if type(copy) is type(error) and isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    words = RuntimeError(f"{type(error).__name__}: {error}")
    words.__notes__ = list(error.__notes__)
    return words
