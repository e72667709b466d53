"""How a user may call an execution."""

from __future__ import annotations


def is_called(rollout_id: str, name: str) -> bool:
    """Whether `name` is the beginning of the id, with or without the prefix that all ids have and tables leave out."""
    return rollout_id.startswith(name) or rollout_id.removeprefix("ro-").startswith(name)
