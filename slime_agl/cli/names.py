"""Execution ids on the command line."""

from __future__ import annotations


def is_called(rollout_id: str, name: str) -> bool:
    """True if `name` abbreviates the id, with or without the `ro-` prefix that tables leave out."""
    return rollout_id.startswith(name) or rollout_id.removeprefix("ro-").startswith(name)
