"""Try tasks before anyone trains on them: the oracle must score 1 and doing nothing 0, by the road of training."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from slime_agl.errors import SlimeAglError
from slime_agl.harness.boxes import box_for, checked, rooted
from slime_agl.harness.collect import collect, mark
from slime_agl.harness.grade import grade
from slime_agl.harness.harbor import HarborTask, read_task
from slime_agl.harness.places import Places
from slime_agl.harness.task import Task, of_harbor

SOLUTION, SOLVE = "/solution", "solve.sh"
LABELS = {"purpose": "validation"}
UNSOLVED = "it has no solution/solve.sh, so nobody knows whether it can be solved"

Verdict = Literal["pass", "look", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A task that was tried. oracle, empty: the rewards, None if not graded. words: what is wrong, '' if nothing is."""

    name: str
    path: str
    oracle: float | None = None
    empty: float | None = None
    words: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        if not self.words:
            return "pass"
        return "look" if self.words == UNSOLVED else "fail"

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "verdict": self.verdict}


async def try_tasks(
    places: Places, paths: Sequence[Path], *, at_a_time: int, done: Callable[[Tried], None]
) -> list[Tried]:
    """Try tasks, in any order; return the results in the order of `paths`. done: hears of each."""
    slots = asyncio.Semaphore(at_a_time)

    async def one(path: Path) -> Tried:
        async with slots:
            tried = await try_task(places, path)
            done(tried)
            return tried

    return list(await asyncio.gather(*map(one, paths)))


async def try_task(places: Places, path: Path) -> Tried:
    """Grade the empty solution and the task's own. What goes wrong is in the result."""
    began = time.monotonic()
    oracle = empty = None
    name = path.name
    try:
        harbor = read_task(path)
        task, name = of_harbor(harbor), harbor.name
        empty = (await grade(places, task, None, LABELS)).reward
        oracle = await _oracle(places, harbor, task)
        words = _wrong(oracle, empty)
    except SlimeAglError as error:
        words = str(error)
    seconds = time.monotonic() - began
    return Tried(name=name, path=str(path), oracle=oracle, empty=empty, words=words, seconds=round(seconds, 3))


async def _oracle(places: Places, harbor: HarborTask, task: Task) -> float | None:
    """Run the task's solution and grade what it changed; None if there is none."""
    if harbor.solution is None:
        return None
    async with box_for(places, task, network="none", labels=LABELS) as box:
        await mark(box, task.workdir)
        await box.upload(harbor.solution, SOLUTION)
        exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in harbor.solution_env.items())
        script = f"{exports}cd {rooted(task.workdir)} && bash {rooted(f'{SOLUTION}/{SOLVE}')}"
        await checked(box, script, harbor.agent_seconds or task.verifier_seconds, "solution/solve.sh")
        work = await collect(box, task.workdir)
    return (await grade(places, task, work, LABELS)).reward


def _wrong(oracle: float | None, empty: float) -> str:
    if empty != 0:
        return f"doing nothing is rewarded with {empty:g}, it must be 0"
    if oracle is None:
        return UNSOLVED
    if oracle != 1:
        return f"its own solution is rewarded with {oracle:g}, it must be 1"
    return ""


def read_tasks(paths: Sequence[Path]) -> list[Tried]:
    """Read tasks without running anything; those that cannot be read say why."""
    found = []
    for path in paths:
        try:
            found.append(Tried(name=read_task(path).name, path=str(path)))
        except SlimeAglError as error:
            found.append(Tried(name=path.name, path=str(path), words=str(error)))
    return found
