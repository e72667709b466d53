"""State of slime's own rollout loops: the current step, and whether it is ending."""

from __future__ import annotations

import sys
from typing import Any


def current_step() -> int:
    """The current step of slime's manager; 0 before the first one, and without a manager."""
    hooks = sys.modules.get("slime.rollout.sample_hooks")
    return getattr(hooks, "_current_rollout_id", None) or 0


def is_aborting(args: Any) -> bool:
    """Return True if slime's default loop has its batch and is aborting the rest, which must return as ABORTED.

    args: slime's namespace. slime has one such state per process, and none without its loop.
    """
    loop = sys.modules.get("slime.rollout.sglang_rollout")
    return loop is not None and loop.GenerateState(args).aborted
