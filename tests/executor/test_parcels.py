"""Entries on their way from a worker: what arrives is what was sent, in fewer bytes."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest

from slime_agl.executor.entry import Entry, Summary
from slime_agl.executor.parcel import packed, unpacked, widen
from slime_agl.host import Sample
from slime_agl.trace.segments import Account
from slime_agl.workers.crew import Member
from slime_agl.workers.fleet import Kept

SUMMARY = Summary(
    rollout_id="ro-1",
    failure="",
    error="",
    account=Account(sampled=2, trained=2, untrained=Counter(), forks=Counter()),
    counters=Counter(),
    superseded=Counter(),
    turns=1,
    segments=1,
    seconds=1.0,
    engine_seconds=0.5,
    gateway_seconds=0.1,
    dangling=0,
    responses=((2, []),),
)


def entry(**fields: object) -> Entry:
    sample = Sample(
        index=3,
        prompt="p",
        tokens=[1, 2**31 - 1, 0],
        response="r",
        response_length=2,
        loss_mask=[1, 0],
        rollout_log_probs=[-0.1, -1e-17],
        reward={"a": 1.0},
    )
    for name, value in fields.items():
        setattr(sample, name, value)
    return Entry([sample], SUMMARY, usable=True)


def sent(one: Entry) -> Entry:
    parcel = pickle.loads(pickle.dumps(packed(one)))
    return unpacked(parcel, Kept(Member(None, 1), 0, parcel))  # type: ignore[arg-type]


def test_samples_arrive_as_they_were_sent() -> None:
    before = entry()
    (sample,) = sent(before).samples
    assert sample == before.samples[0]
    assert type(sample.tokens) is list and type(sample.loss_mask) is list and type(sample.rollout_log_probs) is list
    assert [value.hex() for value in sample.rollout_log_probs] == [(-0.1).hex(), (-1e-17).hex()]


def test_packing_leaves_the_sample_as_it_is() -> None:
    before = entry(rollout_routed_experts=np.zeros((2, 1, 1), np.int32))
    packed(before)
    (sample,) = before.samples
    assert sample.tokens == [1, 2**31 - 1, 0]
    assert sample.rollout_routed_experts.dtype == np.int32


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss_mask", None),
        ("loss_mask", [0.5, 1.0]),
        ("loss_mask", [200, 1]),
        ("loss_mask", np.array([1, 0])),
        ("rollout_log_probs", None),
        ("tokens", (1, 2, 3)),
        ("tokens", [2**40, 1, 2]),
    ],
)
def test_what_a_hook_put_there_arrives_too(name: str, value: object) -> None:
    found = getattr(sent(entry(**{name: value})).samples[0], name)
    assert type(found) is type(value)
    assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value


@pytest.mark.parametrize(
    ("highest", "kind"), [(0, np.uint8), (255, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.int32)]
)
def test_routed_experts_travel_in_the_smallest_integers(highest: int, kind: type) -> None:
    experts = np.array([[[0, highest]], [[1, 0]]], np.int32)
    arrived = sent(entry(rollout_routed_experts=experts))
    assert arrived.samples[0].rollout_routed_experts.dtype == kind
    assert arrived.nbytes == experts.size * np.dtype(kind).itemsize
    widen(arrived.samples)
    assert arrived.samples[0].rollout_routed_experts.dtype == np.int32
    assert np.array_equal(arrived.samples[0].rollout_routed_experts, experts)


def test_experts_that_were_not_captured_are_not_changed() -> None:
    experts = np.array([[[-1, 3]]], np.int32)
    assert np.array_equal(sent(entry(rollout_routed_experts=experts)).samples[0].rollout_routed_experts, experts)


@pytest.mark.parametrize("name", ["rollout_routed_experts", "rollout_top_p_token_ids", "rollout_top_p_token_offsets"])
def test_arrays_that_the_object_store_lends_are_given_to_slime_as_its_own(name: str) -> None:
    lent = np.array([0, 70_000, 3], np.int32)
    lent.flags.writeable = False
    arrived = entry(**{name: lent})
    widen(arrived.samples)
    given = getattr(arrived.samples[0], name)
    assert given.flags.writeable and np.array_equal(given, lent)
