"""Replay data: the experts that each token was routed to, and the top-p set it was sampled from.

Stored in compact arrays, expert ids in the smallest type that fits: there are layers times choices per token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from slime_agl.errors import InvariantError

EXPERT_TYPES = (("B", 1 << 8), ("H", 1 << 16), ("i", 1 << 31))


class Experts(Struct, frozen=True):
    """Routed experts of consecutive tokens.

    start: position in the sequence of the first row's token.
    width: expert ids per token (layers times choices). ids: all rows, flat.
    """

    start: int
    width: int
    ids: array

    def __post_init__(self) -> None:
        if self.start < 0 or self.width < 1 or len(self.ids) % self.width:
            raise InvariantError(
                f"{len(self.ids)} routed experts from token {self.start} on do not fill rows of {self.width}"
            )

    @property
    def end(self) -> int:
        """Position after the last row's token."""
        return self.start + len(self.ids) // self.width


class TopP(Struct, frozen=True):
    """Top-p sets of consecutive tokens: token i was sampled from ids[offsets[i]:offsets[i + 1]]."""

    ids: array
    offsets: array

    def __post_init__(self) -> None:
        if not len(self.offsets) or self.offsets[0] != 0 or self.offsets[-1] != len(self.ids):
            ends = (self.offsets[0], self.offsets[-1]) if len(self.offsets) else ()
            raise InvariantError(
                f"top-p offsets run over {ends}, they must run from 0 to {len(self.ids)}, the ids there are"
            )

    @property
    def tokens(self) -> int:
        return len(self.offsets) - 1


def pack_experts(start: int, width: int, ids: np.ndarray) -> Experts:
    """Pack int32 expert ids. Raises InvariantError for negative ones."""
    low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
    if low < 0:
        raise InvariantError(f"routed experts hold the id {low}; ids count from 0")
    kind = next(code for code, limit in EXPERT_TYPES if high < limit)
    return Experts(start, width, array(kind, ids.astype(np.dtype(kind)).tobytes()))


def join_experts(pieces: Sequence[Experts]) -> np.ndarray:
    """All rows as one int32 array of shape (tokens, width).

    Raises:
        InvariantError: a piece does not start where the previous one ends, or differs in width.
    """
    at, width = 0, pieces[0].width if pieces else 1
    for piece in pieces:
        if piece.start != at or piece.width != width:
            raise InvariantError(
                f"routed experts of {piece.width} ids per token begin at token {piece.start}; "
                f"those before, of {width} ids, end at token {at}"
            )
        at = piece.end
    rows = [np.frombuffer(piece.ids, dtype=np.dtype(piece.ids.typecode)).astype(np.int32) for piece in pieces]
    return np.concatenate(rows).reshape(-1, width) if rows else np.empty((0, width), np.int32)
