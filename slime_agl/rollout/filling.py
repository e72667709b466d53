"""Fixed micro-batches that come out even, however many Samples executions gave."""

from __future__ import annotations

import copy
from typing import Any

from slime_agl.host import Sample
from slime_agl.host.trainer import Schedule


def fill(groups: list[list[Any]], schedule: Schedule) -> int:
    """Add masked Samples to a batch whose entries are lists, until each training step divides; returns their number.

    slime cuts a batch into training steps of `schedule.executions` executions, in order. What a step lacks is added to
    the execution with the step's shortest Sample, as masked copies of that one: they have every field that the others
    have, train nothing, count in no baseline, and the execution stays one.
    """
    entries = [entry for group in groups for entry in group]
    added = 0
    for start in range(0, len(entries) - schedule.executions + 1, schedule.executions):
        step = entries[start : start + schedule.executions]
        missing = schedule.missing(sum(len(entry) for entry in step))
        if missing:
            entry, shortest = min(
                ((entry, sample) for entry in step for sample in entry), key=lambda pair: len(pair[1].tokens)
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
