"""The short form of scripts/chaos keeps its promises: no fault trains a wrong token, no fault ends the run."""

from __future__ import annotations

import os
import re
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
    done = chaos("--quick", "--verbose", "--jobs", "2")  # beside other tests
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every promise held" in done.stdout
    kinds = dict(re.findall(r"^(\w+) .* [\d,]+ \((\d+)\)", done.stdout, re.MULTILINE))
    assert set(kinds) >= {"engine", "agents", "kills", "fleet", "intruders"}
    assert int(kinds["engine"]) >= 40
