"""Shared by all tests: the check that Samples hold exactly what the engine was shown and answered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from slime_agl.trace.invariants import Seen, check_against

pytest_plugins = ["pytester"]


def flat(groups: Iterable[Any]) -> list[Any]:
    """All Samples of a nest of any depth."""
    items = list(groups)
    while items and isinstance(items[0], list):
        items = list(itertools.chain.from_iterable(items))
    return items


@pytest.fixture
def token_exact() -> Callable[[Any, Any], int]:
    """`token_exact(fake, nest)`: hold every Sample against the fake's record; returns the trained tokens."""

    def check(fake: Any, nest: Any) -> int:
        seen = [Seen(sent.request.input_ids, sent.ids, sent.logprobs) for sent in fake.answers]
        return check_against(seen, flat(nest))

    return check
