"""train-demo as a user runs it, and its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from slime_agl.cli.train_demo.curve import draw, mean_curve, write_png

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG"


def train_demo(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slime_agl.cli.main", "train-demo", *words]
    env = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=env)


def test_two_steps_hold_every_invariant_but_are_not_called_learned(tmp_path: Path):
    done = train_demo("--steps", "2", "--seed", "3", "--out", str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "all invariants held" in done.stdout and "not above 0.9" in done.stdout
    assert "Rollout generation" not in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]
    for row in rows:
        assert row["held"] and 0 < row["checked_tokens"] == row["trained"] == row["tokens"]
        assert row["mean_difference"] <= row["difference"] < 1e-4 and 0 <= row["reward"] <= 1
        assert row["metrics"]["rollout/agl/executions"] == 72
    drawn = (tmp_path / "curve.png").exists()
    assert drawn == (find_spec("matplotlib") is not None)
    assert drawn or "matplotlib is not installed" in done.stdout


def test_seeds_are_compared_and_all_have_to_learn(tmp_path: Path):
    done = train_demo("--steps", "1", "--seed", "3", "--seeds", "2", "--out", str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in table if row[3:6] == ["1", "no", "yes"]] == ["3", "4"], done.stdout
    first = [json.loads((tmp_path / f"seed-{seed}" / "metrics.jsonl").read_text())["reward"] for seed in (3, 4)]
    assert [f"{reward:.3f}" for reward in first] == [row[1] for row in table if row[3:6] == ["1", "no", "yes"]]
    assert (tmp_path / "curves.png").exists() == (find_spec("matplotlib") is not None)


def test_a_curve_that_ended_goes_on_at_its_end_in_the_mean():
    assert mean_curve([[0.0, 1.0], [0.0, 0.5, 1.0]]) == [0.0, 0.75, 0.75]


def test_agents_can_run_in_worker_processes_through_a_weight_update(tmp_path: Path):
    done = train_demo("--steps", "2", "--seed", "3", "--workers", "2", "--out", str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "agents in 2 workers" in done.stdout and "all invariants held" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["held"] and row["metrics"]["rollout/agl/executions"] for row in rows] == [72, 72]
    assert all(0 < row["checked_tokens"] and row["difference"] < 1e-4 for row in rows)


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path):
    done = train_demo("--model", str(tmp_path), "--steps", "1")
    assert done.returncode == 2
    assert "config.json does not exist" in done.stderr and "Traceback" not in done.stderr


def test_the_curve_in_the_terminal_rises_with_the_values_and_marks_the_target():
    lines = draw([0.0, 0.5, 1.0], title="reward", target=0.9).splitlines()
    assert lines[0] == "reward" and any(line.strip().startswith("0.9 |") for line in lines)
    assert max(map(len, lines)) <= 80
    assert draw([0.3], title="one step only", target=None)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="the picture needs matplotlib")
def test_the_picture_is_written(tmp_path: Path):
    rows = [{"step": step, "reward": step / 4, "difference": 1e-6, "mean_difference": 1e-7} for step in range(4)]
    assert write_png(tmp_path / "curve.png", rows, target=0.9)
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)
