"""Per-token tensors of slime's trainer: whole responses, and the part of them that a context-parallel rank holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lengths = Sequence[tuple[int, int]]


def lengths_of(rollout_data: Mapping[str, Any]) -> Lengths:
    """(tokens in all, tokens of the response) of each Sample."""
    pairs = zip(rollout_data["total_lengths"], rollout_data["response_lengths"], strict=True)
    return [(int(total), int(response)) for total, response in pairs]


def vectors(rows: Sequence[NDArray[np.float64]]) -> list[Any]:
    """Each row as a float32 tensor on the CPU."""
    import torch

    return [torch.from_numpy(row.astype(np.float32)) for row in rows]


def whole(tensors: Sequence[Any], lengths: Lengths) -> list[NDArray[np.float64]]:
    """Each Sample's values over its whole response. Collective under context parallelism: all its ranks call this."""
    split = _context_parallel()
    parts = [
        tensor if split is None else split.all_gather_with_cp(tensor, total, response)
        for tensor, (total, response) in zip(tensors, lengths, strict=True)
    ]
    return [part.detach().double().cpu().numpy() for part in parts]


def own_part(rows: Sequence[NDArray[np.float64]], lengths: Lengths, like: Sequence[Any]) -> list[Any]:
    """The part of each row that this rank holds, as a tensor with the type and device of its entry in `like`."""
    split = _context_parallel()
    return [
        (row if split is None else split.slice_log_prob_with_cp(row, total, response)).to(given)
        for row, given, (total, response) in zip(_tensors(rows), like, lengths, strict=True)
    ]


def sample_means(
    total_lengths: Sequence[int], response_lengths: Sequence[int], loss_masks: Sequence[Any]
) -> Callable[[Any], Any]:
    """A function that adds up the Samples' means over tokens with mask 1; 0 for a Sample without any.

    It takes the tokens' losses, Sample after Sample, of the part that this rank holds.
    """
    split = _context_parallel()
    if split is not None:
        return split.get_sum_of_sample_mean(total_lengths, response_lengths, loss_masks)

    def means(losses: Any) -> Any:
        parts = zip(losses.split(list(response_lengths)), loss_masks, strict=True)
        return sum((part * mask).sum() / mask.sum().clamp(min=1) for part, mask in parts)

    return means


def _tensors(rows: Sequence[NDArray[np.float64]]) -> list[Any]:
    import torch

    return [torch.from_numpy(row) for row in rows]


def _context_parallel() -> Any:
    """slime's helpers, None without context parallelism. Only slime's trainer has it, and has loaded them."""
    return sys.modules.get("slime.backends.megatron_utils.cp_utils")
