"""The example's tasks are sound, and its programs, the real ones where they are installed, solve them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slime_agl.harness.catalog import PROGRAMS
from slime_agl.harness.install import installed_here
from tests.conftest import flat

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding_agent"


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (EXAMPLE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["own", "mini_swe_agent"])
def test_a_program_solves_tasks_with_the_stand_in(run_example, name):
    if name in PROGRAMS and not installed_here(PROGRAMS[name]):
        pytest.skip(f"{name} is not installed: python -m slime_agl.harness {name}")
    output = run_example("coding_agent", harness=name)
    assert [sample.reward for sample in flat(output.samples)] == [1.0, 1.0]
    assert output.metrics["rollout/agl/turns_per_execution"] == 4
    assert output.metrics["rollout/agl/segments_per_execution"] == 1


def test_a_project_that_stays_broken_gives_no_reward(run_example):
    output = run_example("coding_agent", luck=0.95, harness="own")
    assert [sample.reward for sample in flat(output.samples)] == [0.0, 0.0]


def test_every_task_is_sound_and_has_its_row():
    command = [
        sys.executable,
        "-m",
        "slime_agl.cli.main",
        "tasks",
        str(EXAMPLE / "tasks"),
        "--backend",
        "local",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    tried = {task["name"]: task for task in json.loads(done.stdout)["tasks"]}
    assert all((task["oracle"], task["empty"]) == (1.0, 0.0) for task in tried.values())
    named = [row["metadata"]["task"] for name in ("train", "eval") for row in rows(name)]
    assert sorted(named) == sorted(tried) and len(named) >= 5
    for row in rows("train") + rows("eval"):
        assert row["prompt"] == (EXAMPLE / "tasks" / row["label"] / "instruction.md").read_text(encoding="utf-8")
