"""Grade work in a fresh sandbox, which alone ever has the tests."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from slime_agl.errors import SandboxError, SandboxExhausted
from slime_agl.harness.boxes import Box, box_for, rooted
from slime_agl.harness.collect import Work, apply
from slime_agl.harness.places import Places
from slime_agl.harness.task import TEST_SCRIPT, TESTS, Task

LOGS = "/logs/verifier"
TIMED_OUT = 124
SHOWN = 4000


@dataclass(frozen=True, slots=True)
class Grade:
    """reward: of the tests. diff: of the work. log: end of what the tests wrote."""

    reward: float
    diff: str
    log: str


async def grade(places: Places, task: Task, work: Work | None, labels: Mapping[str, str]) -> Grade:
    """Run the task's tests on the work, or on the untouched environment. A sandbox of its own, without network.

    Raises:
        SandboxError: the sandbox failed, or the tests left no reward that can be read. SandboxExhausted: the tests did
            not end in time; trying again would take as long.
    """
    async with box_for(places, task, network="none", labels=labels) as box:
        diff = await apply(box, task.workdir, work) if work is not None else ""
        return await verify(box, task, diff)


async def verify(box: Box, task: Task, diff: str = "") -> Grade:
    """Put the tests into a sandbox, run them, and read the reward. Raises SandboxError."""
    if isinstance(task.tests, Mapping):
        for path, text in task.tests.items():
            await box.write_file(f"{TESTS}/{path}", text)
    else:
        await box.upload(task.tests, TESTS)
    # What the agent left at these places is not a reward.
    command = (
        f"rm -rf {rooted(LOGS)}; mkdir -p {rooted(LOGS)} && cd {rooted(task.workdir)} && "
        f"bash {rooted(f'{TESTS}/{TEST_SCRIPT}')}"
    )
    status, out, err = await box.exec(command, env=task.verifier_env, timeout=math.ceil(task.verifier_seconds))
    log = f"{out}\n{err}".strip()[-SHOWN:]
    if status == TIMED_OUT:
        raise SandboxExhausted(f"the tests of {task.name} did not end within {task.verifier_seconds:g} s: {log}")
    return Grade(await _reward(box, task, status, log), diff, log)


async def _reward(box: Box, task: Task, status: int, log: str) -> float:
    """Read reward.json, else reward.txt; the status of the tests does not count."""
    if text := await box.read_file(f"{LOGS}/reward.json"):
        return _finite(_of_json(text, task), task, text)
    if text := await box.read_file(f"{LOGS}/reward.txt"):
        return _finite(text.strip(), task, text)
    raise SandboxError(
        f"the tests of {task.name} ended with status {status} and left no {LOGS}/reward.txt or reward.json: {log}"
    )


def _of_json(text: str, task: Task) -> object:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise SandboxError(f"the tests of {task.name} wrote no JSON into reward.json: {text[:200]!r}") from error
    if isinstance(value, dict):
        if "reward" not in value and len(value) != 1:
            raise SandboxError(f"reward.json of {task.name} has {', '.join(value) or 'nothing'}, it must have `reward`")
        value = value["reward"] if "reward" in value else next(iter(value.values()))
    return value


def _finite(value: object, task: Task, text: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise SandboxError(f"the tests of {task.name} gave the reward {text.strip()[:200]!r}, not a finite number")
    return number
