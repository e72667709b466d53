"""CPU pinning: the measured process alone on the first core, everything else on the last."""

from __future__ import annotations

import os


def pin(*, last: bool) -> None:
    """Pin this process; does nothing without affinity support or with one core."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[-1] if last else cores[0]})
