"""What training replays beside tokens: the experts that routed each token, and the set each was sampled from.

Held in compact arrays: expert ids in the smallest unsigned type that holds them, as there are
layers times choices of them for every token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slime_agl.errors import InvariantError

EXPERT_TYPES = (("B", 1 << 8), ("H", 1 << 16), ("i", 1 << 31))


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of neighbouring tokens.

    start: position in the sequence of the token that the first row belongs to.
    width: expert ids of one token (layers times choices). ids: all rows, flat.
    """

    start: int
    width: int
    ids: array

    def __post_init__(self) -> None:
        if self.start < 0 or self.width < 1 or len(self.ids) % self.width:
            raise InvariantError(
                f"{len(self.ids)} routed experts from token {self.start} on are no rows of {self.width}"
            )

    @property
    def end(self) -> int:
        """Position after the token that the last row belongs to."""
        return self.start + len(self.ids) // self.width


@dataclass(frozen=True, slots=True)
class TopP:
    """The sets that neighbouring tokens were sampled from: token i from ids[offsets[i]:offsets[i + 1]]."""

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
    """Pack int32 expert ids. Raises InvariantError for negative ones, which no router gives."""
    low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
    if low < 0:
        raise InvariantError(f"routed experts hold the id {low}; ids count from 0")
    kind = next(code for code, limit in EXPERT_TYPES if high < limit)
    return Experts(start, width, array(kind, ids.astype(np.dtype(kind)).tobytes()))


def join_experts(pieces: Sequence[Experts]) -> np.ndarray:
    """All rows as one int32 array of shape (tokens, width).

    Raises:
        InvariantError: a piece does not begin where the one before ends, or has another width.
    """
    at, width = 0, pieces[0].width if pieces else 1
    for piece in pieces:
        if piece.start != at or piece.width != width:
            raise InvariantError(
                f"routed experts of {piece.width} ids a token begin at token {piece.start}; "
                f"those before, of {width} ids, end at token {at}"
            )
        at = piece.end
    rows = [np.frombuffer(piece.ids, dtype=np.dtype(piece.ids.typecode)).astype(np.int32) for piece in pieces]
    return np.concatenate(rows).reshape(-1, width) if rows else np.empty((0, width), np.int32)
