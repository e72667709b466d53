"""Keys and values of recent sequences, for requests that continue them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slime_agl.local.engine.kv_slots import Stored


@dataclass(frozen=True, slots=True)
class _Entry:
    ids: np.ndarray
    stored: Stored


class PrefixCache:
    """At most `max_tokens` tokens; the least recently used sequences are dropped first. Not thread-safe."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: list[_Entry] = []

    @property
    def tokens(self) -> int:
        return sum(len(entry.ids) for entry in self._entries)

    def worth_storing(self, ids: Sequence[int]) -> bool:
        """Return False if the sequence is too long to keep, or an entry already covers it."""
        wanted = as_ids(ids)
        return 0 < len(wanted) <= self._max_tokens and not any(
            common_prefix(wanted, entry.ids) == len(wanted) for entry in self._entries
        )

    def put(self, ids: Sequence[int], stored: Stored) -> None:
        """Store a sequence and drop the entries that it extends."""
        new = _Entry(as_ids(ids), stored)
        kept = [entry for entry in self._entries if common_prefix(entry.ids, new.ids) < len(entry.ids)]
        self._entries = [*kept, new]
        while self.tokens > self._max_tokens:
            self._entries.pop(0)

    def longest(self, ids: Sequence[int] | np.ndarray) -> tuple[int, Stored]:
        """Return (length, keys and values) of the longest stored prefix of `ids`; (0, []) if there is none."""
        wanted = as_ids(ids)
        lengths = [common_prefix(wanted, entry.ids) for entry in self._entries]
        best = max(range(len(lengths)), key=lengths.__getitem__, default=None)
        if best is None or lengths[best] == 0:
            return 0, []
        entry = self._entries.pop(best)
        self._entries.append(entry)
        return lengths[best], entry.stored

    def clear(self) -> None:
        self._entries.clear()


def as_ids(ids: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.asarray(ids, dtype=np.int32)


def common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """Count the leading ids that are equal."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length
