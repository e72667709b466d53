"""Token ids as JSON text, kept while a prompt grows."""

from __future__ import annotations

from array import array

import numpy as np
import orjson
from msgspec import Struct


class IdText(Struct, frozen=True):
    """Token ids as comma-separated decimals without brackets. length: number of ids.

    pieces: the text, to be written one after the other. Prompts that grow share them: a copy of the text would cost in
    proportion to the history, 55 us for 90,000 tokens. There are few, since each is at least twice as long as the next.
    """

    pieces: tuple[bytes, ...] = ()
    length: int = 0

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(map(len, self.pieces))

    def extended(self, ids: array) -> IdText:
        """Append `ids`, of typecode 'i'. Serialises only these."""
        if not ids:
            return self
        # As numpy, because a list would make an integer object of each id: 3 us instead of 12 for 640 ids.
        added = orjson.dumps(np.frombuffer(ids, np.intc), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        pieces = self.pieces
        if pieces:
            added = b"," + added
        at, size = len(pieces), len(added)
        while at and len(pieces[at - 1]) < 2 * size:
            at -= 1
            size += len(pieces[at])
        if at < len(pieces):
            added = b"".join((*pieces[at:], added))
        return IdText((*pieces[:at], added), self.length + len(ids))

    def cut(self, size: int, length: int) -> IdText:
        """Return the first `length` ids, whose text has `size` bytes."""
        kept: list[bytes] = []
        for piece in self.pieces:
            if size > 0:
                kept.append(piece[:size])
                size -= len(piece)
        return IdText(tuple(kept), length)
