"""Which stored sequence a request continues, and what is evicted first."""

from __future__ import annotations

import torch

from slime_agl.local.engine.kv_slots import KVSlots, RowsView, Shape
from slime_agl.local.engine.prefix_cache import PrefixCache


def test_the_longest_common_prefix_is_found():
    cache = PrefixCache(100)
    cache.put([1, 2, 3, 4], ["a"])
    cache.put([1, 2, 9], ["b"])
    assert cache.longest([1, 2, 3, 7]) == (3, ["a"])
    assert cache.longest([1, 2, 9, 9]) == (3, ["b"])
    assert cache.longest([5]) == (0, [])


def test_a_longer_sequence_takes_the_place_of_its_own_prefix():
    cache = PrefixCache(100)
    cache.put([1, 2], ["short"])
    cache.put([1, 2, 3], ["long"])
    assert cache.tokens == 3
    assert not cache.worth_storing([1, 2])
    assert cache.worth_storing([1, 3])


def test_what_was_not_used_for_longest_goes_first():
    cache = PrefixCache(6)
    cache.put([1, 1], ["a"])
    cache.put([2, 2], ["b"])
    cache.put([3, 3], ["c"])
    cache.longest([1, 1])
    cache.put([4, 4], ["d"])
    assert cache.longest([2, 2]) == (0, [])
    assert cache.longest([1, 1]) == (2, ["a"])
    assert not cache.worth_storing(range(7))


def test_slots_keep_what_they_hold_when_they_grow():
    slots = KVSlots(Shape(layers=1, heads=1, head_dim=2, dtype=torch.float32))
    slots.ensure(1, 3)
    new = torch.arange(6.0).view(1, 1, 3, 2)
    RowsView(slots, 0, torch.arange(3)[None]).update(new, -new, 0)
    slots.ensure(3, 1000)
    ((keys, values),) = slots.read(0, 3)
    assert torch.equal(keys, new[0]) and torch.equal(values, -new[0])
    slots.copy_row(0, 2, 3)
    assert torch.equal(slots.read(2, 3)[0][0], new[0])


def test_a_row_looks_at_its_own_past_only():
    slots = KVSlots(Shape(layers=1, heads=1, head_dim=1, dtype=torch.float32))
    slots.ensure(2, 4)
    view = RowsView(slots, 0, torch.tensor([[1], [3]]))
    assert view.visible == 4
    assert view.mask().tolist() == [[[[True, True, False, False]]], [[[True, True, True, True]]]]
