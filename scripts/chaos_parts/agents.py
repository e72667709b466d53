"""Part `agents`: hostile agents among well-behaved ones. Each attempt fails or succeeds alone; the run continues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import agentlightning as agl

from chaos_parts.engine import EngineProcess, Plan
from chaos_parts.hostile import HOSTILE
from chaos_parts.load import Drive, converse, seen
from chaos_parts.outcome import Outcome
from chaos_parts.setting import Setting
from chaos_parts.trials import PIDS, Trial, alive
from slime_agl.assemble import current

TOGETHER = 14
DEADLINE_SECONDS = 6.0


def trials(setting: Setting) -> list[Trial]:
    """Quick: many in one process. Thorough: also each alone."""
    names = list(HOSTILE)
    setting.random("agents").shuffle(names)
    bunches: list[tuple[str, ...]] = []
    for threaded in (False, True):
        mine = [name for name in names if HOSTILE[name].threaded == threaded and not HOSTILE[name].alone]
        bunches += [tuple(mine[at : at + TOGETHER]) for at in range(0, len(mine), TOGETHER)]
    bunches += [(name,) for name in names if HOSTILE[name].alone]
    if not setting.quick:
        bunches += [(name,) for name in names if not HOSTILE[name].alone]
    return [Trial("agents", kinds, setting.bound(_run), 45.0, setting.seed) for kinds in bunches]


def _run(setting: Setting, trial: Trial, folder: Path) -> Outcome:
    record, kinds = folder / "record.jsonl", trial.kinds
    threaded = HOSTILE[kinds[0]].threaded
    with EngineProcess(Plan(record, trial.seed), setting.tokenizer) as engine:
        rows = [{"prompt": f"{kind} #{at}", "metadata": {"harm": kind}} for at, kind in enumerate(kinds)]
        rows += [{"prompt": f"steady {at}", "metadata": {"harm": ""}} for at in range(2 * len(rows) + 12)]
        drive = Drive(
            folder,
            setting.checkpoint,
            engine.url,
            rows,
            agent=_blocking(folder) if threaded else _async(folder),
            batch=len(kinds) + 3,
            samples=1,
            section={"runners": {"timeout_seconds": DEADLINE_SECONDS}},
        )
        done: list[Any] = []
        for _ in range(2):
            drive.step(trial.who)
            done += runtime.last_finished() if (runtime := current()) else []
        _check_ends(drive, trial, folder, done)
        outcome = drive.close(trial.who, [record], threads=sum(HOSTILE[kind].threads for kind in kinds))
    outcome.faults.update(kinds)
    return outcome


def _async(folder: Path) -> Any:
    @agl.rollout
    async def agent(task: Any, llm: Any) -> Any:
        seen.executions += 1
        if task["harm"]:
            return await HOSTILE[task["harm"]].act(task, llm, folder)
        await converse(task, llm)
        return 1.0

    return agent


def _blocking(folder: Path) -> Any:
    @agl.rollout
    def agent(task: Any, llm: Any) -> Any:
        seen.executions += 1
        if task["harm"]:
            return HOSTILE[task["harm"]].act(task, llm, folder)
        asyncio.run(converse(task, llm))
        return 1.0

    return agent


def _check_ends(drive: Drive, trial: Trial, folder: Path, done: list[Any]) -> None:
    """Check that each hostile attempt ended as it must, with its traceback, and left no process."""
    for kind in trial.kinds:
        who = f"agents: {kind}"
        mine = [one for one in done if one.task["harm"] == kind]
        spec = HOSTILE[kind]
        if not mine and not drive.outcome.broken:
            drive.outcome.breaks(who, "its execution never ended")
        for one in mine:
            if one.failure not in spec.ends and not (one.failure == "no_llm_call" and "" in spec.ends):
                ends = " or ".join(repr(end) for end in spec.ends)
                last = (one.error.strip().splitlines() or [""])[-1][:200]
                drive.outcome.breaks(who, f"its attempt ended as {one.failure!r} ({last}), not as {ends}")
            elif one.failure == "agent_error" and spec.says not in one.error:
                drive.outcome.breaks(who, f"its traceback does not hold {spec.says!r}: {one.error[-200:]!r}")
    if tasks := [task for task in getattr(seen, "kept", []) if isinstance(task, asyncio.Task) and not task.done()]:
        drive.outcome.left["tasks"] += len(tasks)
        drive.outcome.breaks(trial.who, f"{len(tasks)} tasks outlive their attempts: {tasks[0].get_coro()}")
    if any(HOSTILE[kind].children for kind in trial.kinds) and (pids := alive(folder / PIDS)):
        kinds = ", ".join(kind for kind in trial.kinds if HOSTILE[kind].children)
        drive.outcome.left["children"] += len(pids)
        drive.outcome.breaks(trial.who, f"{len(pids)} processes outlive their attempts ({kinds})")
