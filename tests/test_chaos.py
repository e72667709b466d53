"""The short form of scripts/chaos keeps its promises: no fault trains a wrong token, no fault ends the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def chaos(*words: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "chaos_parts", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )


def test_no_fault_trains_a_wrong_token_and_none_ends_the_run() -> None:
    done = chaos("--quick", "--verbose")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every promise held" in done.stdout


def test_engines_break_in_at_least_forty_ways() -> None:
    listed = chaos("--quick", "--list").stdout.split("\n")
    assert len({line for line in listed if line.startswith("engine:")}) >= 40
    assert {line.partition(":")[0] for line in listed if line} >= {"engine", "agents", "kills", "intruders"}
