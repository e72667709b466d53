"""Keys and values of the running sequences: one row per sequence, written in place.

Row r, position p stores the p-th token of the r-th running sequence, so that joining or leaving the batch moves at most
one row, and a step writes new tokens only. Padding follows each sequence and is masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Stored = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of one sequence: per layer two tensors [kv heads, tokens, head dim]."""

_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype


class KVSlots:
    """The cache that a model writes to through a `RowsView`, passed as `past_key_values`."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._rows = 0
        self._capacity = 0

    def ensure(self, rows: int, tokens: int) -> None:
        """Make room for `rows` sequences of `tokens` tokens, keeping the contents. Sizes grow by doubling."""
        if rows <= self._rows and tokens <= self._capacity:
            return
        old_rows, old_capacity = self._rows, self._capacity
        self._rows = _doubled(max(old_rows, 1), rows)
        self._capacity = _doubled(max(old_capacity, _FIRST_CAPACITY), tokens)
        for tensors in (self.keys, self.values):
            grown = [self._empty() for _ in range(self._shape.layers)]
            for new, old in zip(grown, tensors, strict=False):
                new[:old_rows, :, :old_capacity] = old
            tensors[:] = grown

    def release(self) -> None:
        """Free the memory. Call only while nothing is running."""
        self.keys.clear()
        self.values.clear()
        self._rows = self._capacity = 0

    def read(self, row: int, tokens: int) -> Stored:
        """Copy the first `tokens` tokens of a row."""
        pairs = zip(self.keys, self.values, strict=True)
        return [(key[row, :, :tokens].clone(), value[row, :, :tokens].clone()) for key, value in pairs]

    def write(self, row: int, stored: Stored, tokens: int) -> None:
        """Copy the first `tokens` tokens of `stored` into a row."""
        for layer, (key, value) in enumerate(stored):
            self.keys[layer][row, :, :tokens] = key[:, :tokens]
            self.values[layer][row, :, :tokens] = value[:, :tokens]

    def copy_row(self, source: int, target: int, tokens: int) -> None:
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :tokens] = tensor[source, :, :tokens]

    def _empty(self) -> torch.Tensor:
        # Zeros instead of uninitialised memory: attention multiplies masked values by zero, and zero times NaN is NaN.
        shape = self._shape
        return torch.zeros((self._rows, shape.heads, self._capacity, shape.head_dim), dtype=shape.dtype)


class RowsView:
    """The slots as seen by one forward pass: rows from `first` on, new tokens at `positions`.

    positions: [rows, new tokens]. visible: tokens per row that attention can see. Has the methods that models of
    transformers call on a cache when given position ids and a four-dimensional mask.
    """

    def __init__(self, slots: KVSlots, first: int, positions: torch.Tensor) -> None:
        self._slots = slots
        self._first = first
        self._positions = positions
        self._rows, self._new = positions.shape
        self.visible = int(positions.max()) + 1

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values [rows, heads, new, dim]; return all that are visible to the rows."""
        return self._put(self._slots.keys[layer_idx], key), self._put(self._slots.values[layer_idx], value)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.visible - self._new

    def mask(self) -> torch.Tensor:
        """[rows, 1, new tokens, visible]: True where attention is allowed."""
        return torch.arange(self.visible) <= self._positions[:, None, :, None]

    def _put(self, tensor: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        rows = tensor[self._first : self._first + self._rows]
        index = torch.arange(self._rows)[:, None].expand_as(self._positions)
        rows[index, :, self._positions] = new.transpose(1, 2)
        return rows[:, :, : self.visible]


def _doubled(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size
