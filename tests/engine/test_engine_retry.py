"""Pauses and routing keys."""

from __future__ import annotations

import pytest

from slime_agl.engine import retry
from slime_agl.engine.retry import Backoff, RoutingKeys


def test_pauses_grow_to_the_longest_with_half_of_each_jitter():
    backoff = Backoff(first=1.0, factor=2.0, longest=5.0)
    for failures, whole in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (1000, 5.0)]:
        assert all(whole / 2 <= backoff.pause(failures) <= whole for _ in range(20))


def test_a_backoff_that_shrinks_is_refused():
    with pytest.raises(ValueError, match="factor"):
        Backoff(factor=0.5)


def test_a_key_changes_after_repeated_failures_and_stays_changed():
    keys = RoutingKeys(rekey_after=2)
    keys.failed("s", "s")
    assert keys.key("s") == "s"
    keys.failed("s", "s")
    assert keys.key("s") == "s~1"
    keys.worked("s")
    assert (keys.key("s"), keys.rekeys) == ("s~1", 1)


def test_a_new_key_that_never_worked_is_changed_at_its_first_failure():
    keys = RoutingKeys(rekey_after=2)
    for key in ("s", "s", "s~1", "s~2"):
        keys.failed("s", key)
    assert keys.key("s") == "s~3"
    keys.worked("s")
    keys.failed("s", "s~3")
    assert keys.key("s") == "s~3"


def test_only_failures_in_a_row_count():
    keys = RoutingKeys(rekey_after=2)
    for _ in range(5):
        keys.failed("s", "s")
        keys.worked("s")
    assert (keys.key("s"), keys.rekeys) == ("s", 0)


def test_late_failures_of_an_old_key_leave_the_new_one_alone():
    keys = RoutingKeys(rekey_after=1)
    keys.failed("s", "s")
    keys.failed("s", "s")
    assert (keys.key("s"), keys.rekeys) == ("s~1", 1)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retry, "REMEMBERED_SESSIONS", 3)
    keys = RoutingKeys(rekey_after=1)
    for number in range(10):
        keys.failed(f"s{number}", f"s{number}")
    assert [keys.key(f"s{number}") for number in (0, 6, 7, 9)] == ["s0", "s6", "s7~1", "s9~1"]
