"""Agents of other frameworks, sync and async, with templates: unchanged behind `Trainer.fit`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.algorithm.test_fit import free_port

PROGRAM = Path(__file__).with_name("agents_program.py")
REWARDS = {
    "autogen": 1.0,
    "langgraph": 1.0,
    "plain_async": 1.0,
    "one_turn": 0.5,
    "emits": 0.2,
    "templated": 1.0,
    "with_template": 1.0,
}


def test_agents_of_every_kind_run_unchanged(tmp_path: Path, tiny_checkpoint: Path):
    for package in ("autogen_agentchat", "langgraph", "langchain_openai"):
        pytest.importorskip(package)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(free_port()), str(tiny_checkpoint), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert sorted(told) == sorted([kind, "succeeded", reward] for kind, reward in REWARDS.items() for _ in range(2))
    (step,) = [json.loads(line[5:]) for line in done.stderr.splitlines() if line.startswith('TOLD {"step"')]
    assert sorted(step["rewards"]) == sorted([*REWARDS.values()] * 2)
