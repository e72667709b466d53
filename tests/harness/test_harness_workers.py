"""A harness in worker processes: the configuration travels, sandboxes and keys are the worker's own."""

from __future__ import annotations

import sys

from tests.conftest import flat
from tests.harness.test_harness_command import CALL, SOLVE


def test_a_command_runs_in_workers(run_harness, fake_sglang, row, tmp_path):
    fake_sglang.answer_with(lambda request: "ok")
    program = tmp_path / "program.py"
    program.write_text(CALL + SOLVE)
    command = f"{sys.executable} -I -S {program}"
    output = run_harness({"command": command}, [row], n_samples=2, workers={"count": 1})
    assert [sample.reward for sample in flat(output.samples)] == [1.0, 1.0]
    assert output.metrics["rollout/agl/harness/ms/run"] > 0
    assert output.metrics["rollout/agl/sandbox/created"] == 4
