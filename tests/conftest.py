"""Shared by all tests: the check that Samples contain exactly the engine's prompts and answers."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from slime_agl.trace.invariants import Seen, check_against

pytest_plugins = ["pytester"]


# Far beyond what any test takes: a fuse for those that wait for what never happens.
HUNG_SECONDS, AGAIN_SECONDS = 600.0, 5.0


@contextmanager
def fused(seconds: float, again: float = AGAIN_SECONDS) -> Iterator[None]:
    """Fail a test that runs longer, at its current line; and again, should a task swallow that."""

    def blow(*_: Any) -> None:
        pytest.fail(f"hangs: nothing came of it within {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, blow)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, again)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # of a fuse around this one


@pytest.fixture(autouse=True)
def no_test_hangs() -> Iterator[None]:
    with fused(HUNG_SECONDS):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Captured text as any pipe can carry it: tests that run side by side send their reports to one process."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


def flat(groups: Iterable[Any]) -> list[Any]:
    """Flatten a nest of Samples of any depth."""
    items = list(groups)
    while items and isinstance(items[0], list):
        items = list(itertools.chain.from_iterable(items))
    return items


@pytest.fixture
def token_exact() -> Callable[[Any, Any], int]:
    """`token_exact(fake, nest)`: compare every Sample with the fake's record; returns the trained tokens."""

    def check(fake: Any, nest: Any) -> int:
        seen = [Seen(sent.request.input_ids, sent.ids, sent.logprobs) for sent in fake.answers]
        return check_against(seen, flat(nest))

    return check
