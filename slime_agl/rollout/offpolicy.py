"""--mask-offpolicy-in-partial-rollout: mask tokens that older weights sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from slime_agl.errors import HostError
from slime_agl.rollout.executions import Entry
from slime_agl.trace.segments import Segment


def mask_older(entry: Entry, version: str) -> Entry:
    """Zero the loss mask of every token that weights other than `version` sampled; `off_policy` counts them.

    Raises:
        HostError: a sample hook changed the length of a response, so tokens and weights cannot be matched.
    """
    masked = 0
    segments = entry.execution.segments
    for sample, segment in zip(entry.samples, segments, strict=True) if segments else ():  # else it is a placeholder
        older = list(_older(segment, version))
        if len(older) != sample.response_length:
            raise HostError(
                f"sample {sample.index}: its response has {sample.response_length} tokens, its execution gave it "
                f"{len(older)}; with --mask-offpolicy-in-partial-rollout a sample hook must not change the length"
            )
        pairs = list(zip(older, sample.loss_mask or (), strict=True))
        masked += sum(1 for is_older, trains in pairs if is_older and trains)
        sample.loss_mask = [0 if is_older else trains for is_older, trains in pairs]
    return dataclasses.replace(entry, off_policy=masked)


def _older(segment: Segment, version: str) -> Iterator[bool]:
    """For each token of the response: True if other weights sampled it."""
    first = segment.first_trained
    for at, turn in enumerate(segment.turns[first:], first):
        if at > first:
            yield from (False for _ in turn.new_ids)
        for part in turn.parts:
            yield from (part.weight_version != version for _ in part.ids)
