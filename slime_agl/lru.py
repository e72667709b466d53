"""A bounded dictionary: the package's one least-recently-used cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRU(OrderedDict[K, V]):
    """Drops the entries that were written or `used` longest ago.

    room: number of entries, or, with `size`, the sum of size(key); entries of such a cache are never deleted by hand.
    Plain lookups do not count as use. Each operation is atomic without `size`; with it, lock around writes.
    """

    def __init__(self, room: int, size: Callable[[K], int] | None = None) -> None:
        super().__init__()
        self._room, self._size, self._taken = room, size, 0

    def __setitem__(self, key: K, value: V) -> None:
        if self._size is not None and key not in self:
            self._taken += self._size(key)
        super().__setitem__(key, value)
        self.move_to_end(key)
        while (len(self) if self._size is None else self._taken) > self._room:
            dropped, _ = self.popitem(last=False)
            self._taken -= 0 if self._size is None else self._size(dropped)

    def used(self, key: K) -> V | None:
        """The value, which counts as its use; None if absent."""
        value = self.get(key)
        if value is not None:
            try:
                self.move_to_end(key)
            except KeyError:  # another thread's write has just dropped it
                pass
        return value
