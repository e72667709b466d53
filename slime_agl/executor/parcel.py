"""An entry on its way from a worker: lists as arrays, replay data in the smallest integers that hold it.

Lists of Python numbers would cost the manager, which all executions pass through, several times as much to read.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from slime_agl.executor.entry import REPLAY, Entry, Summary
from slime_agl.host import Sample
from slime_agl.runtime import Kept

# Fields of a Sample that are lists of numbers, with the type that holds each.
LISTS = {"tokens": "i", "loss_mask": "b", "rollout_log_probs": "d", "teacher_log_probs": "d"}
SMALL = (np.uint8, np.uint16)
# slime's own type of routed experts.
EXPERTS = np.int32


class Parcel(NamedTuple):
    """The parts of an Entry."""

    samples: list[Sample]
    summary: Summary
    usable: bool


def packed(entry: Entry) -> Parcel:
    return Parcel([_packed(sample) for sample in entry.samples], entry.summary, entry.usable)


def unpacked(parcel: Parcel, kept: Kept) -> Entry:
    """The entry of a parcel; routed experts stay small until `widen`. kept: see Entry."""
    for sample in parcel.samples:
        for name in LISTS:
            value = getattr(sample, name)
            if isinstance(value, array):
                setattr(sample, name, value.tolist())
    return Entry(parcel.samples, parcel.summary, parcel.usable, kept)


def widen(samples: Iterable[Sample]) -> None:
    """Give replay data slime's types again, as the last thing before slime gets the Samples.

    On Ray it is a read-only view of the object store, which copying also frees.
    """
    for sample in samples:
        experts = sample.rollout_routed_experts
        if isinstance(experts, np.ndarray) and experts.dtype in SMALL:
            sample.rollout_routed_experts = experts.astype(EXPERTS)
        for name in REPLAY:
            value = getattr(sample, name)
            if isinstance(value, np.ndarray) and not value.flags.writeable:
                setattr(sample, name, value.copy())


def _packed(sample: Sample) -> Sample:
    small = copy.copy(sample)
    for name, kind in LISTS.items():
        value = getattr(sample, name)
        if isinstance(value, list):
            setattr(small, name, _array(kind, value))
    experts = sample.rollout_routed_experts
    if isinstance(experts, np.ndarray) and experts.dtype == EXPERTS:
        small.rollout_routed_experts = _smallest(experts)
    return small


def _array(kind: str, values: list) -> array | list:
    try:
        return array(kind, values)
    except (TypeError, OverflowError):  # a hook put something else there
        return values


def _smallest(values: np.ndarray) -> np.ndarray:
    if not values.size or values.min() < 0:
        return values
    highest = values.max()
    return next((values.astype(kind) for kind in SMALL if highest <= np.iinfo(kind).max), values)
