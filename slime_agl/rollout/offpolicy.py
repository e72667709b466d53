"""--mask-offpolicy-in-partial-rollout: mask tokens that older weights sampled."""

from __future__ import annotations

import dataclasses

from slime_agl.errors import HostError
from slime_agl.executor.entry import Entry, Spans


def mask_older(entry: Entry, version: str) -> Entry:
    """Zero the loss mask of every token that weights other than `version` sampled; `off_policy` counts them.

    Raises:
        HostError: a sample hook changed the length of a response, so tokens and weights cannot be matched.
    """
    masked = 0
    responses = entry.summary.responses
    for sample, (length, spans) in (
        zip(entry.samples, responses, strict=True) if responses else ()
    ):  # else a placeholder
        if length != sample.response_length:
            raise HostError(
                f"sample {sample.index}: its response has {sample.response_length} tokens, its execution gave it "
                f"{length}; with --mask-offpolicy-in-partial-rollout a sample hook must not change the length"
            )
        before = sample.loss_mask or []
        sample.loss_mask = _masked(before, spans, version)
        masked += sum(before) - sum(sample.loss_mask)
    return dataclasses.replace(entry, off_policy=masked)


def _masked(mask: list[int], spans: Spans, version: str) -> list[int]:
    """The mask without tokens outside the spans of this version."""
    kept = [0] * len(mask)
    for start, end, sampled_by in spans:
        if sampled_by == version:
            kept[start:end] = mask[start:end]
    return kept
