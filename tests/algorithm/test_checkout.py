"""`slime_agl.SLIME` in front of a driver that is slime's in shape: words, files, environment, resources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import slime_agl
from slime_agl.algorithm import slime
from slime_agl.algorithm.driver import RAY_JOB_CONFIG, Command, on_ray
from slime_agl.config.store import StoreConfig
from slime_agl.errors import ConfigError
from slime_agl.lightning._agl import InMemoryLightningStore
from slime_agl.lightning.stores import make_store
from tests.algorithm.test_fit import free_port

PROGRAM = Path(__file__).with_name("checkout_program.py")
CHECKOUT = PROGRAM.with_name("checkout")


@pytest.mark.parametrize("strategy", ["cs", "shm"])
def test_the_driver_gets_flags_settings_and_rows_and_the_agent_its_task(
    tmp_path: Path, tiny_checkpoint: Path, strategy: str
):
    words = [str(free_port()), str(tiny_checkpoint), str(tmp_path), *([strategy] if strategy == "shm" else [])]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Exception ignored" not in done.stderr
    told = [json.loads(line[5:]) for line in done.stderr.splitlines() if line.startswith("TOLD ")]
    assert [sorted(step["rewards"]) for step in told[:2]] == [[0.25, 0.25, 0.75, 0.75]] * 2
    assert {step["at"] for step in told[:2]} == {str(CHECKOUT)}
    assert told[2]["unknown"] == [] and told[2]["extra"] == "passed"
    # A Ray cluster that runs already gives its processes the variables of the driver's job only.
    passed = json.loads(told[2]["job"])["runtime_env"]["env_vars"]
    assert passed["EXTRA"] == "passed" and passed["PYTHONPATH"].split(":")[0] == str(CHECKOUT)
    section = yaml.safe_load((tmp_path / "agl.yaml").read_text(encoding="utf-8"))["agl"]
    assert section["store"]["resources"] and section["store"]["url"].startswith("http://")
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["metadata"]["task"]["worth"] for row in rows] == [0.25, 0.75]


def test_a_checkout_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match='no checkout of slime(.|\n)*driver="local"'):
        slime_agl.SLIME({}, slime_dir=tmp_path)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"driver": "trian.py"}, "one of train.py, train_async.py, local"),
        ({"launch": "slurm"}, "subprocess or ray_job"),
        ({"driver": "local", "launch": "ray_job"}, "this machine"),
        ({"config": {"agl": {"runers": {}}}}, "Did you mean 'runners'"),
        ({"config": {"prompt_data": "x"}}, "prompt_data is set by"),
        ({"config": {"n-samples-per-prompt": 8}}, "write it n_samples_per_prompt"),
        ({"config": {"--colocate": True}}, "write it colocate"),
        ({"config": {"n_sample_per_prompt": 8}, "driver": "local"}, "Did you mean 'n_samples_per_prompt'"),
        ({"config": {"agl": {"store": {"serve": "127.0.0.1:5000"}}}}, "is for runners without a Trainer"),
        ({"config": {"agl": {"agent": "my.agent"}}}, "agl.agent is my.agent, but the runners"),
        ({"config": {"agl": {"runners": {"max_concurrency": 8}}}}, "agl.runners.max_concurrency is 8"),
        ({"config": {"agl": {"workers": {"count": 2}}}}, "agl.workers.count is 2"),
        ({"config": {"agl": "x"}}, "must be a mapping"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(more: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        slime_agl.SLIME(**{"config": {}, "slime_dir": CHECKOUT, **more})


def test_what_a_job_of_ray_passes_on_already_is_kept(tmp_path: Path):
    given = {"runtime_env": {"env_vars": {"A": "a", "B": "b"}, "working_dir": "x"}, "metadata": {"name": "n"}}
    plain = Command(
        words=["python"], directory=tmp_path, environment={RAY_JOB_CONFIG: json.dumps(given)}, passed={"B": "new"}
    )
    told = json.loads(on_ray(plain).environment[RAY_JOB_CONFIG])
    assert told == {"runtime_env": {"env_vars": {"A": "a", "B": "new"}, "working_dir": "x"}, "metadata": {"name": "n"}}


def test_each_trainer_of_a_process_leads_its_spans_to_its_own_store(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slime, "_fixes_address", lambda: True)
    for name in (slime.TRACES, slime.LED):
        monkeypatch.setenv(name, "x")  # so that it is put back
        monkeypatch.delenv(name)
    for port in ("4801", "4802"):
        monkeypatch.setenv("AGL_SERVER_PORT", port)
        slime_agl.SLIME({}, driver="local")
        assert os.environ[slime.TRACES] == f"http://localhost:{port}/v1/traces"
        slime.require_traces_led(f"http://localhost:{port}")
    monkeypatch.setenv(slime.TRACES, "http://collector:4318/v1/traces")
    slime_agl.SLIME({}, driver="local")
    assert os.environ[slime.TRACES] == "http://collector:4318/v1/traces"
    with pytest.raises(ConfigError, match="set AGL_SERVER_PORT=4802"):
        slime.require_traces_led("http://localhost:4802")


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ({"main_thread": "runner", "n_runners": 1}, '"main_thread": "algorithm"'),
        ({"main_thread": "algorithm", "n_runners": 2}, "set n_runners=1"),
    ],
)
async def test_a_strategy_of_shared_memory_that_cannot_work_is_refused(strategy: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        async with slime._served(InMemoryLightningStore(), SimpleNamespace(**strategy)):
            pass


async def test_a_store_of_shared_memory_is_served_to_the_driver_alone():
    store = InMemoryLightningStore(thread_safe=True)
    strategy = SimpleNamespace(main_thread="algorithm", n_runners=1)
    async with slime._served(store, strategy) as address:
        ours, other = make_store(StoreConfig(**address)), make_store(StoreConfig(url=address["url"], key="guess"))
        await ours.open()
        with pytest.raises(ConfigError, match="does not take this key"):
            await other.open()
        queued = await ours.store.enqueue_rollout("task", mode="train")
        await ours.close()
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == [queued.rollout_id]
