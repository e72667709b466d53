"""`Trainer.fit` in real processes, with the local engine and learner."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from slime_agl.local.train.boxes import rows
from slime_agl.record.reading import read_run

PROGRAM = Path(__file__).with_name("fit_program.py")
EXECUTIONS = 48


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run: what its driver recorded, what the Trainer's store holds, and its log."""
    folder = tmp_path_factory.mktemp("fit")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(free_port()), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    (folder / "log").write_text(done.stdout, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def steps(run: Path) -> list[float]:
    """The mean reward of each step, as the driver tells it."""
    found = re.findall(r"^step (\d+): reward ([\d.]+),", (run / "log").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in found] == list(range(len(found)))
    return [float(reward) for _, reward in found]


def test_the_policy_learns(run: Path, steps: list[float]):
    """Chance earns 0.23 on average, and the mean of five steps has a standard deviation of 0.02 then.

    With batches as small as here, one run in ten rested at 0.43 for longer than a test can wait.
    """
    assert sum(steps[:2]) / 2 < 0.34
    assert sum(steps[-5:]) / 5 > 0.36, steps
    store = [rollout for rollout in json.loads((run / "store.json").read_text()) if rollout["mode"] == "train"]
    held = [[rollout["reward"] for rollout in store if rollout["step"] == step] for step in range(len(steps))]
    assert [round(sum(rewards) / EXECUTIONS, 3) for rewards in held] == pytest.approx(steps, abs=0.002)


def test_the_store_and_the_samples_tell_the_same(run: Path, steps: list[float]):
    """Rollouts, attempts, spans, rewards and weight versions, one for one."""
    store = {rollout["rollout_id"]: rollout for rollout in json.loads((run / "store.json").read_text())}
    recorded = [(record, execution) for record in read_run(run / "record") for execution in record.executions]
    assert {execution.ledger.rollout_id for _, execution in recorded} == set(store)
    assert len(recorded) == len(store) == len(steps) * EXECUTIONS + len(steps) // 4 * 2
    for _, execution in recorded:
        held = store[execution.ledger.rollout_id]
        assert held["status"] == "succeeded" and held["attempts"] == [execution.ledger.attempt_id]
        assert held["reward"] == execution.reward == execution.samples[0].reward
        assert held["input"] == execution.task and held["input"] in rows()
        versions = [list(dict.fromkeys(part.weight_version for part in turn.parts)) for turn in execution.ledger.turns]
        assert held["versions"] == versions and held["turns"] == [turn.turn_id for turn in execution.ledger.turns]
        assert held["span_attempts"] == held["attempts"] and held["resources"].endswith(f"-step-{held['step']}")


def test_the_weights_behind_the_endpoint_change_from_step_to_step(run: Path, steps: list[float]):
    seen = [
        {part.weight_version for turn in execution.ledger.turns for part in turn.parts}
        for record in read_run(run / "record")
        for execution in record.executions
        if not execution.dataset
    ]
    assert all(len(versions) == 1 for versions in seen)
    assert set.union(*seen) == {str(step) for step in range(len(steps))}


def test_the_validation_set_is_evaluated(run: Path, steps: list[float]):
    modes = [rollout["mode"] for rollout in json.loads((run / "store.json").read_text())]
    assert modes.count("val") == len(steps) // 4 * 2
    assert (run / "log").read_text(encoding="utf-8").count("eval val after") == len(steps) // 4


def test_each_trained_token_is_the_engines_own(run: Path, steps: list[float]):
    log = (run / "log").read_text(encoding="utf-8")
    assert log.count("trained tokens are the engine's own") == len(steps)
