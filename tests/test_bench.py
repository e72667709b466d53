"""The gateway benchmark counts what it claims to count; its times do not matter here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# memory, 64 at once, 512 at once and one at a time, of ten turns each; and the long session (see bench.rounds.QUICK)
TURNS = (4 + 8 + 32 + 2) * 10 + 5

RUN = f"""
from bench.__main__ import SOURCES
from bench.material import write_material
from bench.rounds import QUICK, measure
from bench.table import markdown, table
import pathlib, sys
figures = measure(write_material(pathlib.Path(sys.argv[1]), SOURCES, small=True), list(sys.argv[2:]), QUICK, 1)
for name, found in figures.items():
    assert (found.turns, found.errors) == ({TURNS}, 0), (name, found)
    assert min(found.rate, found.crowd_rate, found.cpu, found.long_cpu) > 0, (name, found)
assert all(len(row.split("|")) == len(figures) + 3 for row in markdown(figures).splitlines())
print(table(figures))
"""


def test_a_quick_run_serves_every_turn_of_every_subject(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), "ours", "rerender"],
        env=env,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "slime_agl" in done.stdout and "render and encode again" in done.stdout


SANDBOXES = """
import asyncio
from bench.sandboxes import measure, table
figures = asyncio.run(measure(["local"], 1, (1, 2)))
assert min(*figures["local"].seconds.values(), figures["local"].command, figures["local"].memory) > 0, figures
print(table(figures))
"""


def test_a_quick_run_creates_sandboxes_beside_bare_processes(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    done = subprocess.run([sys.executable, "-c", SANDBOXES], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["bare", "local"]
