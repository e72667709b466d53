"""What slime's own rollout loops know, and tell nobody: the step, and whether they are ending it."""

from __future__ import annotations

import sys
from typing import Any


def current_step() -> int:
    """The step that slime's manager is in, 0 before its first one and where there is no manager."""
    hooks = sys.modules.get("slime.rollout.sample_hooks")
    return getattr(hooks, "_current_rollout_id", None) or 0


def is_aborting(args: Any) -> bool:
    """Whether slime's default loop has its batch and is ending the rest, which has to come back as ABORTED.

    args: slime's namespace. slime has one state a process; without slime's loop there is none.
    """
    loop = sys.modules.get("slime.rollout.sglang_rollout")
    return loop is not None and loop.GenerateState(args).aborted
