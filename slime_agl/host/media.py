"""Join the image tensors of several turns into those of one Sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def join_tensors(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Concatenate tensors of the same name along their first dimension, as slime's trainer does over samples.

    Ignores everything else; None without any tensor.
    """
    import torch

    names = dict.fromkeys(name for turn in turns for name in turn)
    joined = {name: [turn[name] for turn in turns if torch.is_tensor(turn.get(name))] for name in names}
    return {name: torch.cat(values, dim=0) for name, values in joined.items() if values} or None
