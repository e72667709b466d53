"""Run model-written Python in a `local` sandbox of slime_agl: limits, no network, a deadline, nothing left running.

The program runs with this user's rights and can read this user's files: it contains honest mistakes, not an attacker.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from slime_agl.sandbox.home import Home
from slime_agl.sandbox.local import LocalBackend
from slime_agl.sandbox.protocol import Limits, SandboxSpec
from slime_agl.sandbox.reach import Reach

LIMITS = Limits(memory_mb=1024, storage_mb=1)
SHOWN_CHARACTERS = 2000
TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class Ran:
    """output: stdout and stderr, truncated; status: the exit status, None at the deadline."""

    output: str
    status: int | None


async def run_python(arguments: list[str], *, cwd: Path, seconds: float = 5.0) -> Ran:
    """Run `python ARGUMENTS` in `cwd`. seconds: limit of wall time."""
    backend = LocalBackend(Home(), Reach())
    try:
        async with backend.sandbox(SandboxSpec(shared={"/app": cwd}, limits=LIMITS)) as box:
            command = shlex.join([sys.executable, *arguments])
            status, output, _ = await box.exec(f"{command} 2>&1", env={"PYTHONDONTWRITEBYTECODE": "1"}, timeout=seconds)
    finally:
        await backend.close()
    note = f"stopped after {seconds:g} s" if status == TIMED_OUT else ""
    return Ran(f"{output[:SHOWN_CHARACTERS]}{note}", None if note else status)
