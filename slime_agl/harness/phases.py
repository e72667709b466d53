"""What an execution spends its time on, and what befalls it, as metrics of the step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from slime_agl.lightning import own_attempt

Phase = Literal["create", "install", "run", "collect", "seal", "grade"]
Tell = Callable[[str], None]


class Phases:
    """Times phases and counts events, each under `rollout/agl/harness/`. tell: hears of a phase when it begins."""

    def __init__(self, tell: Tell | None = None) -> None:
        self._tell = tell or (lambda words: None)

    @contextmanager
    def phase(self, name: Phase, words: str = "") -> Iterator[None]:
        """Time a phase; also one that fails."""
        self._tell(words or name)
        began = time.monotonic()
        try:
            yield
        finally:
            own_attempt.count(f"harness/ms/{name}", round(1000 * (time.monotonic() - began)))

    def count(self, name: str) -> None:
        own_attempt.count(f"harness/{name}")
