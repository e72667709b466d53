"""Pad a step so that slime's fixed micro-batches divide evenly."""

from __future__ import annotations

import copy
from typing import Any

from slime_agl.host import Sample
from slime_agl.host.trainer import Schedule


def fill(groups: list[list[Any]], schedule: Schedule) -> int:
    """Add masked Samples to a batch whose entries are lists until every optimizer batch divides; return their number.

    slime cuts the batch of a step into optimizer batches of `schedule.executions` executions, in order. Missing Samples
    are added to the execution with the shortest Sample of the optimizer batch, as masked copies of it: they have every
    field that the others have, train nothing and count in no baseline.
    """
    entries = [entry for group in groups for entry in group]
    added = 0
    for start in range(0, len(entries) - schedule.executions + 1, schedule.executions):
        batch = entries[start : start + schedule.executions]
        missing = schedule.missing(sum(len(entry) for entry in batch))
        if missing:
            entry, shortest = min(
                ((entry, sample) for entry in batch for sample in entry), key=lambda pair: len(pair[1].tokens)
            )
            entry += [_masked(shortest) for _ in range(missing)]
            added += missing
    return added


def _masked(sample: Sample) -> Sample:
    twin = copy.copy(sample)
    twin.loss_mask = [0] * sample.response_length
    twin.remove_sample = True
    twin.metadata = {**(sample.metadata or {}), "agl": {**(sample.metadata or {}).get("agl", {}), "fills_batch": True}}
    return twin
