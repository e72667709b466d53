"""Which core a process runs on: the measured one alone on the first, everything else on the last."""

from __future__ import annotations

import os


def pin(*, last: bool) -> None:
    """Pin this process. A machine without affinity, or with one core, is left as it is."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[-1] if last else cores[0]})
