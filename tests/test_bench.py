"""Benchmarks count what they claim to count; their times do not matter here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.frame import interleaved, medians

ROOT = Path(__file__).parents[1]
# memory, with twice as many before; 64 at once, 512 at once and one at a time, of ten turns each; and the long session
# (see bench.rounds.QUICK)
TURNS = (3 * 4 + 8 + 32 + 2) * 10 + 5

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


EXECUTIONS = """
import argparse, inspect, pathlib, sys
from bench.executions import COLUMNS, history, measure, profile, rows
from bench.material import write_material
material = write_material(pathlib.Path(sys.argv[1]), [argparse, inspect], small=True)
loads = {1: 16, 3: 16}
figures = measure(material, loads, 1, modes=["thread"], long=40)
found = figures["thread"]
assert all(found[f"{turns} {column}"] > 0 for turns in loads for column in COLUMNS), found
assert found["3 gateway alone"] > found["1 gateway alone"] and found["3 generate"] > found["3 agents alone"], found
assert found["3 of it gateway"] < found["3 generate"], found
assert len(rows(figures, loads)) == 3 and len(history(figures, 40)) == 2
print(profile(material, "async", work="generate", turns=2, executions=32, profile="agl-runtime"))
"""


def test_a_quick_run_measures_executions_and_shows_where_their_time_goes(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTIONS, str(tmp_path)], env=env, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    head, *places = (line.split() for line in done.stdout.splitlines())
    assert head[-2:] == ["through", "within"]
    assert {"slime_agl/executor/samples.py", "slime_agl/lightning/attempts.py"} <= {place[0] for place in places}


def test_subjects_are_measured_in_turn_and_the_first_round_does_not_count() -> None:
    seen: list[tuple[str, bool]] = []

    def subject(name: str) -> Any:
        def measured(warm: bool) -> dict[str, float]:
            seen.append((name, warm))
            return {"figure": 100.0 if warm else float(len(seen))}

        return measured

    taken = interleaved({"a": subject("a"), "b": subject("b")}, 3)
    assert seen == [("a", True), ("b", True), *[("a", False), ("b", False)] * 3]
    assert medians(taken["a"]) == {"figure": 5.0} and medians(taken["b"]) == {"figure": 6.0}


CLIENTS = """
import asyncio, json, pathlib, sys
from bench.clients import measure, request_body
from bench.frame import Process
path = pathlib.Path(sys.argv[1]) / "answers.json"
path.write_text(json.dumps({"answers": [[100, 101]]}))
engine = Process("bench.engine", str(path))
try:
    figures = asyncio.run(measure(engine.hello["url"], request_body(20), 64, 1))
finally:
    engine.stop()
assert min(figures.values()) > 0 and sorted(figures) == ["aiohttp", "httpx", "ours"], figures
"""


def test_a_quick_run_compares_clients_of_the_engine(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    done = subprocess.run([sys.executable, "-c", CLIENTS, str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
