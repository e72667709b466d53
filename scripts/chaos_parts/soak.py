"""A soak: many steps with every kind of agent and engine fault; memory, files, threads and tasks must stay flat.

With workers, theirs, too: means over the workers, each of which must live through all of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import agentlightning as agl

from chaos_parts.engine import EngineProcess, Plan
from chaos_parts.engine_faults import FAULTS
from chaos_parts.hostile import HOSTILE
from chaos_parts.intruders import memory
from chaos_parts.load import Drive, ask, client, converse, leftovers, mark, seen, tasks
from chaos_parts.outcome import Outcome
from chaos_parts.setting import Setting
from chaos_parts.trials import Trial
from chaos_parts.workers import worker_pids
from slime_agl.assemble import current
from slime_agl.in_process import InProcess

BATCH, SHOWN, WARM = 6, 20, 0.3
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}},
    }
]
# Agents that any step can include: none needs a deadline or leaves what nothing can end.
HARMS = (
    "exit() in the main coroutine",
    "KeyboardInterrupt",
    "an exception that cannot be printed",
    "StopIteration",
    "recursion without end",
    "exit() in a child task that nobody awaits",
    "exit() in a callback",
    "exit() in a task that outlives its attempt",
    "KeyboardInterrupt in a child task",
    "loop.stop()",
    "leaves a task behind",
    "leaves a process behind",
    "leaves a grandchild behind",
    "a storm of retries",
    "leaves in the middle of its requests",
    "calls after its end",
    "words that no file can hold",
    "a reward that is NaN",
    "10,000 messages",
)
# Allowed growth from the first part of the run to the last.
SPARE = {"MiB": 32.0, "fds": 12.0, "threads": 6.0, "tasks": 6.0, "children": 2.0}
WORKER_SPARE = {"worker MiB": 32.0, "worker fds": 12.0, "worker threads": 6.0, "worker children": 2.0}
AGENT_SECONDS = 30.0


def trials(setting: Setting) -> list[Trial]:
    return [Trial("soak", (f"{setting.steps} steps",), setting.bound(_run), 120.0 + 30.0 * setting.steps, setting.seed)]


def _run(setting: Setting, trial: Trial, folder: Path) -> Outcome:
    record, chance = folder / "record.jsonl", setting.random("soak")
    calm = [name for name, fault in FAULTS.items() if not fault.waits]
    rows: list[Any] = []
    for at in range(997):
        metadata = {"kind": "", "harm": "", "tool": False, "folder": str(folder)}
        match at % 6:
            case 0:
                metadata["kind"] = chance.choice(calm)
            case 1:
                metadata["harm"] = chance.choice(HARMS)
            case 2:
                metadata["tool"] = True
        rows.append({"prompt": f"row {at}", "metadata": metadata})
    with EngineProcess(Plan(record, trial.seed), setting.tokenizer, FAULTS) as engine:
        drive = Drive(
            folder,
            setting.checkpoint,
            engine.url,
            rows,
            batch=BATCH,
            section={
                "agent": f"{__name__}:mixed",
                "runners": {"timeout_seconds": AGENT_SECONDS},
                "workers": {"count": setting.workers},
            },
        )
        looks = [_look(drive, trial, number, setting.steps) for number in range(setting.steps)]
        runtime = current()
        kept = runtime.run(_kinds_of_tasks()) if isinstance(runtime, InProcess) else {}
        outcome = drive.close(trial.who, [record])
    outcome.notes.append("soak: tasks at the end: " + ", ".join(f"{count} {name}" for name, count in kept.items()))
    if deaths := int(drive.metrics["workers/deaths"]):
        outcome.breaks(trial.who, f"{deaths} workers died")
    if setting.workers:
        outcome.executions = sum(len(group) for group in drive.delivered)
    _judge(trial, [look for look in looks if look], outcome)
    return outcome


async def _kinds_of_tasks() -> dict[str, int]:
    """Count the coroutines running on this loop, by name."""
    return Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())


@agl.rollout
async def mixed(task: Any, llm: Any) -> Any:
    """Behave as the row says."""
    seen.executions += 1
    if task["harm"]:
        return await HOSTILE[task["harm"]].act(task, llm, Path(task["folder"]))
    if task["tool"]:
        return await _with_tool(task, llm)
    await converse(task, llm)
    return 1.0


async def _with_tool(task: Any, llm: Any) -> float:
    messages: list[Any] = [{"role": "user", "content": f"{mark(task, llm.endpoint)} [tool]"}]
    async with client(llm) as http:
        for _ in range(3):
            reply = await ask(http, llm, messages, tools=TOOLS)
            calls = reply.get("tool_calls") or []
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls]
            if not calls:
                return 1.0
    return 0.0


def _look(drive: Drive, trial: Trial, number: int, steps: int) -> dict[str, float]:
    """Run one step; now and then, measure the process after it."""
    drive.step(trial.who)
    seen.kept = []
    drive.source.taken[:-64] = []
    if (number + 1) % max(1, steps // SHOWN):
        return {}
    ctypes.CDLL(None).malloc_trim(0)  # free memory not returned to the system does not count as a leak
    runtime = current()
    count = runtime.run(tasks()) if isinstance(runtime, InProcess) else 0
    own = {"MiB": memory("VmRSS"), **leftovers(), "tasks": count}
    return {"step": number + 1, **own, **_workers(worker_pids()), "at": time.monotonic()}


def _workers(pids: list[int]) -> dict[str, float]:
    """Means over the worker processes; nothing without any."""
    if not pids:
        return {}
    each = [{"MiB": memory("VmRSS", pid), **leftovers(pid)} for pid in pids]
    return {f"worker {name}": statistics.mean(one[name] for one in each) for name in each[0]}


def _judge(trial: Trial, looks: list[dict[str, float]], outcome: Outcome) -> None:
    spares = SPARE | (WORKER_SPARE if "worker MiB" in looks[0] else {})
    names = list(spares)
    outcome.notes.append("soak:  step  " + "  ".join(name.rjust(8) for name in names))
    outcome.notes += [
        f"soak: {look['step']:5.0f}  " + "  ".join(f"{look[name]:{max(8, len(name))}.0f}" for name in names)
        for look in looks
    ]
    warm = looks[int(len(looks) * WARM) :]
    if len(warm) < 6:
        return
    third = len(warm) // 3
    for name, spare in spares.items():
        first, last = (statistics.median(look[name] for look in part) for part in (warm[:third], warm[-third:]))
        if last > first + spare:
            outcome.breaks(trial.who, f"{name} grow: {first:.0f} at first, {last:.0f} at the end")
