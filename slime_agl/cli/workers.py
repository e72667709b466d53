"""The option `--workers`, of the commands that run agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def workers_option(command: F) -> F:
    """Add `--workers N`; the parameter `workers` is None without it."""
    return click.option(
        "--workers",
        metavar="N",
        type=click.IntRange(0),
        help="Run agents in N worker processes (agl.workers.count); 0 runs them in this one.",
    )(command)


def in_workers(section: Mapping[str, Any], count: int | None) -> dict[str, Any]:
    """Set `workers.count` in an `agl:` section; None leaves it as it is."""
    if count is None:
        return dict(section)
    workers = section.get("workers") or {}
    # What is no mapping is refused with the other keys, by name.
    return {**section, "workers": {**workers, "count": count} if isinstance(workers, Mapping) else workers}


def told(count: int | None) -> str:
    """Say where agents run, for the first line of a report; '' for this process."""
    return f", agents in {count} worker{'s' * (count != 1)}" if count else ""
