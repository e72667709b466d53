"""slime's driver as a job of a Ray cluster: `python -m slime_agl.algorithm.job JOB.json`, see `Job`.

Submits the job, passes its log on and ends as it ends: with status 0 only if it succeeded. SIGTERM, also sent when the
Trainer dies, stops the job. A broken log stream does not end it.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

AGAIN_SECONDS = 5.0
# Attempts to learn the state of a job whose server does not answer.
TRIES = 60
SUCCEEDED, STOPPED, FAILED = "succeeded", "was stopped", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """ray: the command that `job submit` is a subcommand of. address: of the job server. name: the submission's id.

    words: the driver's command. variables: of its environment on the cluster.
    """

    ray: Sequence[str]
    address: str
    name: str
    words: Sequence[str]
    variables: Mapping[str, str]

    def written(self, path: Path) -> Path:
        path.touch(mode=0o600)  # variables may be credentials
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    def submit(self) -> None:
        """Submit the job.

        Raises:
            SystemExit: the server refused it.
        """
        runtime = json.dumps({"env_vars": dict(self.variables)})
        words = ["--submission-id", self.name, "--runtime-env-json", runtime, "--no-wait", "--", *self.words]
        status = subprocess.run(self._ray("submit", *words), stdin=subprocess.DEVNULL).returncode
        if status != 0:
            sys.exit(f"Ray's job server at {self.address} did not take the job ({self.ray[-1]} ended with {status})")

    def follow(self) -> None:
        """Pass the log on until it ends or the stream breaks off."""
        subprocess.run(self._ray("logs", "--follow", self.name), stdin=subprocess.DEVNULL)

    def state(self) -> tuple[str, str]:
        """Return SUCCEEDED, STOPPED, FAILED, another word for a job that goes on, "" if unknown; and what Ray says."""
        asked = subprocess.run(
            self._ray("status", self.name), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
        name = re.escape(self.name)
        told = re.search(rf"Job '{name}' ({SUCCEEDED}|{STOPPED}|{FAILED})|Status for job '{name}': (\S+)", asked.stdout)
        if asked.returncode != 0 or told is None:
            return "", asked.stderr or asked.stdout
        return told[1] or told[2], asked.stdout

    def stop(self) -> None:
        """Stop the job. In a session of its own: what ends this process's group is not to end that."""
        subprocess.run(
            self._ray("stop", self.name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _ray(self, verb: str, *words: str) -> list[str]:
        return [*self.ray, "job", verb, "--address", self.address, *words]


class _Terminated(BaseException):
    """SIGTERM arrived."""


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.exit(run(Job(**given)))


def run(job: Job) -> int:
    """Run a job to its end, and return the exit status. SIGTERM stops it."""
    early: list[int] = []
    # Not during submission: whether there is a job to stop would be unknown.
    signal.signal(signal.SIGTERM, lambda number, frame: early.append(number))
    try:
        job.submit()
    except SystemExit:
        if early:  # the command may have been ended when the server had the job
            job.stop()
        raise
    except OSError as error:
        sys.exit(f"{job.ray[0]} cannot be run ({error}); jobs of Ray need pip install 'ray[default]', on PATH")
    try:
        signal.signal(signal.SIGTERM, _terminated)
        if early:
            _terminated(signal.SIGTERM, None)
        job.follow()
        return _waited(job)
    except _Terminated:
        job.stop()
        return 128 + signal.SIGTERM


def _waited(job: Job) -> int:
    """Wait for a job to end once its log has stopped; return the exit status."""
    silent, told = 0, False
    while True:
        state, said = job.state()
        if state == SUCCEEDED:
            return 0
        if state in (FAILED, STOPPED):
            sys.stderr.write(said if state == FAILED else f"the job {job.name} was stopped on the cluster\n")
            return 1
        silent = 0 if state else silent + 1
        if silent == TRIES:
            sys.stderr.write(f"{said}\nRay's job server at {job.address} does not tell the state of {job.name}\n")
            return 1
        if not told:
            told = True
            sys.stderr.write(f"the log of {job.name} broke off, and the job goes on; see: ray job logs {job.name}\n")
        time.sleep(AGAIN_SECONDS)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


if __name__ == "__main__":
    main()
