"""A driver as a job of Ray: handed in, followed, and stopped with its Trainer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import slime_agl
from slime_agl.algorithm import job as jobs
from slime_agl.algorithm.driver import Command, run_driver
from slime_agl.algorithm.flags import KnownFlags
from slime_agl.algorithm.job import Job
from slime_agl.errors import HostError

FAKE = Path(__file__).with_name("fake_ray.py")


class Cluster:
    """A stand-in for a cluster's job server; see fake_ray.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.says(logs="step 1\n", status="succeeded")

    def says(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def verbs(self) -> list[str]:
        return [json.loads(line)[1] for line in (self.folder / "calls").read_text(encoding="utf-8").splitlines()]

    def job(self) -> Job:
        ray = [sys.executable, str(FAKE), str(self.folder)]
        return Job(ray=ray, address="http://head:1", name="job-1", words=["sh", "a b.sh"], variables={"EXTRA": "1"})

    def command(self) -> Command:
        path = self.job().written(self.folder / "job.json")
        program = "from slime_agl.algorithm import job; job.AGAIN_SECONDS = 0.01; job.main()"
        words = [sys.executable, "-c", program, path]
        return Command(words=[str(word) for word in words], directory=self.folder, environment=dict(os.environ))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def test_a_job_is_handed_in_with_its_variables_and_its_log_passed_on(cluster: Cluster, capfd):
    await run_driver(cluster.command())
    assert "step 1" in capfd.readouterr().err
    assert cluster.verbs() == ["submit", "logs", "status"]
    handed = json.loads((cluster.folder / "calls").read_text(encoding="utf-8").splitlines()[0])
    assert handed[:4] == ["job", "submit", "--address", "http://head:1"]
    assert json.loads(handed[handed.index("--runtime-env-json") + 1]) == {"env_vars": {"EXTRA": "1"}}
    assert handed[-3:] == ["--", "sh", "a b.sh"] and "--no-wait" in handed


async def test_a_job_that_fails_raises_with_the_last_lines(cluster: Cluster):
    cluster.says(logs="step 1\nRuntimeError: no GPU\n", status="failed")
    with pytest.raises(HostError, match="no GPU"):
        await run_driver(cluster.command())


async def test_a_job_that_somebody_stops_has_not_succeeded(cluster: Cluster):
    cluster.says(status="was stopped")
    with pytest.raises(HostError, match="was stopped on the cluster"):
        await run_driver(cluster.command())


async def test_a_log_that_breaks_off_is_not_the_end_of_the_job(cluster: Cluster, capfd):
    cluster.says(status="RUNNING\nunreachable\nRUNNING\nsucceeded")
    await run_driver(cluster.command())
    assert cluster.verbs() == ["submit", "logs"] + ["status"] * 4
    assert capfd.readouterr().err.count("the job goes on") == 1


async def test_a_server_that_does_not_take_the_job_is_named(cluster: Cluster):
    cluster.says(refuses="")
    with pytest.raises(HostError, match="Connection refused(.|\n)*http://head:1 did not take the job"):
        await run_driver(cluster.command())
    assert cluster.verbs() == ["submit"]


def test_a_state_that_is_never_told_is_given_up(cluster: Cluster, monkeypatch, capfd):
    monkeypatch.setattr(jobs, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "TRIES", 3)
    cluster.says(status="unreachable")
    assert jobs._waited(cluster.job()) == 1
    assert "does not tell the state of job-1" in capfd.readouterr().err and cluster.verbs() == ["status"] * 3


async def test_cancelling_stops_the_job(cluster: Cluster):
    cluster.says(held="")
    running = asyncio.ensure_future(run_driver(cluster.command()))
    while not (cluster.folder / "followed").exists():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cluster.verbs() == ["submit", "logs", "stop"]


def test_a_job_outlives_no_trainer(cluster: Cluster):
    """A Trainer that is killed ends its jobs, too."""
    cluster.says(held="")
    command = cluster.command()
    program = (
        "import asyncio, json, os, sys; from pathlib import Path; "
        "from slime_agl.algorithm.driver import Command, run_driver; "
        "given = json.loads(sys.argv[1]); "
        "asyncio.run(run_driver(Command(words=given, directory=Path.cwd(), environment=dict(os.environ))))"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(command.words)], cwd=cluster.folder, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: (cluster.folder / "followed").exists())
    trainer.kill()
    trainer.wait()
    wait_until(lambda: "stop" in cluster.verbs())


def wait_until(holds) -> None:
    async def look() -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.02)

    asyncio.run(look())


def test_words_reach_the_cluster_as_they_are(tmp_path: Path, monkeypatch):
    """Not every version of Ray quotes the words of a job, and a job begins in a folder of its node."""
    monkeypatch.setenv("RAY_ADDRESS", "http://head:2")
    checkout = tmp_path / "a $HOME & b"
    (checkout / "slime" / "utils").mkdir(parents=True)
    (checkout / "slime" / "utils" / "arguments.py").touch()
    (checkout / "train.py").write_text("import json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv[1:]]))\n")
    algorithm = slime_agl.SLIME({}, slime_dir=checkout, launch="ray_job", env={"EXTRA": "1"})
    flags = {"rollout_stop": ["<|im_end|>", "$HOME 'x' \"y\""], "apply_chat_template_kwargs": {"a": True}}
    command = algorithm._command(tmp_path, flags, {}, KnownFlags())
    assert command.words[1:3] == ["-m", "slime_agl.algorithm.job"]
    job = Job(**json.loads(Path(command.words[3]).read_text(encoding="utf-8")))
    assert job.address == "http://head:2" and job.variables["EXTRA"] == "1"
    done = subprocess.run(job.words, capture_output=True, text=True, check=True, cwd="/")
    words = json.loads(done.stdout)
    assert words[0] == str(checkout)
    assert words[1:] == [
        *("--rollout-stop", *flags["rollout_stop"]),
        *("--apply-chat-template-kwargs", '{"a": true}'),
        *("--custom-config-path", str(tmp_path / "agl.yaml")),
    ]
