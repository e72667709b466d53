"""A run of several steps on one runtime and one data source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from slime_agl.assemble import current
from slime_agl.host import RolloutArgs
from slime_agl.rollout import generate, shutdown
from slime_agl.rollout.lasting import Lasting
from slime_agl.testing.host import ListDataSource
from slime_agl.testing.paths import importable


class Steps:
    """`steps(n)` is slime's call for step n; `steps.evaluate(n)` the one for an evaluation after it."""

    def __init__(self, args: Any, source: ListDataSource) -> None:
        self.args, self.source = args, source

    def __call__(self, number: int) -> Any:
        return generate(self.args, number, self.source)

    def evaluate(self, number: int) -> Any:
        return generate(self.args, number, self.source, evaluation=True)

    @property
    def runtime(self) -> Any:
        return current()

    @property
    def under_way(self) -> list[str]:
        """Prompts of the groups not yet in a batch."""
        return [
            group[0].prompt for group in Lasting.of(current(), RolloutArgs.read(self.args)).outstanding.after(1 << 30)
        ]


@pytest.fixture
def steps(rollout_args: Callable[..., Any]) -> Iterator[Callable[..., Steps]]:
    """`steps(agent, rows, **overrides)` prepares a run; see `Steps`."""
    with ExitStack() as stack:
        stack.callback(shutdown)

        def make(agent: Any, rows: list[Any], *, agl: dict[str, Any] | None = None, **overrides: Any) -> Steps:
            section = {"agent": stack.enter_context(importable(agent)), "runners": {"timeout_seconds": 60.0}}
            args = rollout_args(agl={**section, **(agl or {})}, **overrides)
            return Steps(args, ListDataSource(rows, args.n_samples_per_prompt))

        yield make
