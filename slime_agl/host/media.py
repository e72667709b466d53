"""Tensors of several turns' images as those of one sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def join_tensors(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Concatenate tensors of one name along their first dimension, as slime's trainer does over samples.

    Anything that is not a tensor is left out; None when nothing is left.
    """
    import torch

    names = dict.fromkeys(name for turn in turns for name in turn)
    held = {name: [turn[name] for turn in turns if torch.is_tensor(turn.get(name))] for name in names}
    return {name: torch.cat(values, dim=0) for name, values in held.items() if values} or None
