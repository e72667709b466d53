"""The bounded dictionary behind every cache."""

from __future__ import annotations

from slime_agl.lru import LRU


def test_the_entry_used_longest_ago_makes_room_for_a_new_one() -> None:
    cache: LRU[str, int] = LRU(2)
    cache["a"], cache["b"] = 1, 2
    assert cache.used("a") == 1 and cache.used("x") is None
    cache["c"] = 3
    assert dict(cache) == {"a": 1, "c": 3}


def test_a_lookup_is_no_use_and_a_write_is() -> None:
    cache: LRU[str, int] = LRU(2)
    cache["a"], cache["b"] = 1, 2
    assert cache.get("a") == 1 and cache["a"] == 1
    cache["b"] = 4
    cache["c"] = 3
    assert dict(cache) == {"b": 4, "c": 3}
    assert cache.pop("b") == 4 and cache.setdefault("d", 5) == 5
    assert dict(cache) == {"c": 3, "d": 5}


def test_entries_can_be_bounded_by_their_size() -> None:
    cache: LRU[str, int] = LRU(10, size=len)
    for text in ("aaaa", "bbbb", "bbbb", "cc", "dddd"):
        cache[text] = 0
    assert list(cache) == ["bbbb", "cc", "dddd"]
    cache["too long for it"] = 0
    assert not cache
    cache["aaaa"] = 1
    assert dict(cache) == {"aaaa": 1}
