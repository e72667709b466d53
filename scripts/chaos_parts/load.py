"""The load that faults are injected into: a well-behaved agent, and slime's calls around it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from chaos_parts.book import Book, Plain
from chaos_parts.outcome import Outcome
from slime_agl.assemble import current
from slime_agl.host import RolloutArgs, Sample
from slime_agl.rollout import generate, shutdown
from slime_agl.rollout.lasting import Lasting
from slime_agl.testing import ListDataSource, importable, make_args

import agentlightning as agl  # isort: skip

MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "partial": {"partial_rollout": True},
    "async": {"agl": {"async": {"enabled": True, "max_staleness": 1}}},
}
TURNS = 3
EVER = 1 << 30
GONE_SECONDS = 8.0  # for threads and sockets still closing


class Seen:
    """What agents saw: errors by message, and how many executions started."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self.executions = 0

    def note(self, error: BaseException) -> None:
        if isinstance(error, httpx.HTTPStatusError):
            self.errors[f"HTTP {error.response.status_code}"] += 1
        else:
            self.errors[type(error).__name__] += 1


seen = Seen()


def mark(task: Any, endpoint: str) -> str:
    """Tell the engine who asks: the fault wanted, the execution and the row. The endpoint's path names the attempt."""
    _, _, tail = endpoint.partition("/rollout/")
    rollout, _, rest = tail.partition("/attempt/")
    return f"[[{task.get('kind', '')}|{rollout}|{rest.partition('/')[0]}|{task['prompt']}]]"


def client(llm: Any, **more: Any) -> httpx.AsyncClient:
    """A cheap client: loading the system's certificates would dominate an execution."""
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    return httpx.AsyncClient(verify=False, trust_env=False, headers=headers, timeout=more.pop("timeout", 60.0), **more)


async def ask(http: httpx.AsyncClient, llm: Any, messages: list[Any], **more: Any) -> dict[str, Any]:
    """Take one turn: append the reply to the messages and return it."""
    body = {"model": "m", "messages": messages, **more}
    answer = await http.post(f"{llm.endpoint}/chat/completions", json=body)
    reply = answer.raise_for_status().json()["choices"][0]["message"]
    messages.append(reply)
    return reply


async def converse(task: Any, llm: Any, turns: int = TURNS, *, brave: bool = True, timeout: float = 60.0) -> int:
    """Take some turns; a brave agent continues after an error, others fail. Returns the replies."""
    messages: list[Any] = [{"role": "user", "content": f"{mark(task, llm.endpoint)} go"}]
    got = 0
    async with client(llm, timeout=timeout) as http:
        for turn in range(turns):
            try:
                await ask(http, llm, messages)
                got += 1
            except httpx.HTTPError as error:
                seen.note(error)
                if not brave:
                    raise
            messages.append({"role": "user", "content": f"On with {turn}."})
    return got


@agl.rollout
async def steady(task: Any, llm: Any) -> float:
    """Every other execution of a row gives up at the first error."""
    seen.executions += 1
    seen.begun[task["prompt"]] += 1
    brave = bool(seen.begun[task["prompt"]] % 2)
    await converse(task, llm, brave=brave, timeout=task.get("patience", 60.0))
    return 1.0


class OneByOne(ListDataSource):
    """Gives one group when asked for several, so that a step has none to spare and waits for each fault to end."""

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        return super().get_samples(min(1, num_samples))


class Drive:
    """slime's side of a run, in this process: steps and what they delivered. `close` compares it with the records."""

    def __init__(
        self,
        folder: Path,
        checkpoint: Path,
        engine: str,
        rows: list[Any],
        *,
        agent: Any = steady,
        batch: int,
        samples: int = 2,
        mode: str = "sync",
        section: dict[str, Any] | None = None,
        **flags: Any,
    ) -> None:
        self.folder, self.outcome = folder, Outcome()
        self.before = leftovers()
        self._stack = ExitStack()
        shape = MODES[mode]
        own = {"agent": self._stack.enter_context(importable(agent)), **shape.get("agl", {}), **(section or {})}
        own["runners"] = {"timeout_seconds": 60.0, **own.get("runners", {})}
        flags = {name: value for name, value in shape.items() if name != "agl"} | flags
        self.args = make_args(
            engine,
            checkpoint,
            rollout_batch_size=batch,
            n_samples_per_prompt=samples,
            num_rollout=1 << 20,
            over_sampling_batch_size=batch + (batch // 2 if mode != "sync" else 0),
            agl=own,
            **flags,
        )
        self.source = (OneByOne if mode == "sync" else ListDataSource)(rows, samples)
        self.delivered: list[list[Plain]] = []
        self.metrics: Counter[str] = Counter()
        self.steps = 0
        self.raised = False

    def step(self, who: str) -> bool:
        """Make one of slime's calls; an exception breaks the promise that nothing ends the run."""
        number, self.steps = self.steps, self.steps + 1
        try:
            output = generate(self.args, number, self.source)
        except BaseException as error:
            traceback.print_exc()
            self.raised = True
            words = str(error).strip().splitlines() or [""]
            self.outcome.breaks(
                who, f"ended step {number} of the run: {type(error).__name__}: {words[0][:200]} ... {words[-1][:200]}"
            )
            return False
        for name, value in (output.metrics or {}).items():
            if isinstance(value, (int, float)):
                self.metrics[name.removeprefix("rollout/agl/")] += value
        self.delivered += [flat(group) for group in output.samples]
        return True

    def close(self, who: str, records: list[Path], *, threads: int = 0) -> Outcome:
        """Compare tokens with the engine's record, prompts with the data source, and the process with its start.

        threads: unendable threads that agents left.
        """
        runtime = current()
        held = Lasting.of(runtime, RolloutArgs.read(self.args)).outstanding.after(EVER) if runtime else []
        waiting = [group[0].group_index for group in held]
        self._count_prompts(who, waiting)
        self._check_tokens(who, records)
        shutdown()
        self._stack.close()
        gone = time.monotonic() + GONE_SECONDS
        while (extra := self._extra(threads)) and time.monotonic() < gone:
            time.sleep(0.05)
        self.outcome.left.update(extra)
        for name, count in extra.items():
            which = f" ({', '.join(thread.name for thread in threading.enumerate())})" if name == "threads" else ""
            self.outcome.breaks(who, f"{count} {name} are left after the end{which}")
        self.outcome.executions, self.outcome.errors = seen.executions, seen.errors
        return self.outcome

    def _extra(self, threads: int) -> dict[str, int]:
        now = leftovers()
        spare = {"threads": threads, "fds": 2}
        return {
            name: more for name, count in now.items() if (more := count - self.before[name] - spare.get(name, 0)) > 0
        }

    def _count_prompts(self, who: str, waiting: list[int]) -> None:
        taken = {group[0].group_index for group in self.source.taken}
        numbers = [group[0].group for group in self.delivered]
        back = {group[0].group_index for group in self.source._buffer}
        held = set(waiting) - set(numbers)
        dropped = sum(int(count) for name, count in self.metrics.items() if name.startswith("dropped_groups/"))
        twice = [number for number, count in Counter(numbers).items() if count > 1]
        lost = len(taken - set(numbers) - back - held) - dropped
        # A step that raised reports no drop counts; its exception is a broken promise already.
        lost = 0 if self.raised else max(0, lost)
        self.outcome.twice, self.outcome.lost = len(twice), lost
        if twice:
            self.outcome.breaks(who, f"groups {twice} were delivered twice")
        if lost:
            self.outcome.breaks(who, f"{lost} groups are neither delivered, put back, under way nor counted as dropped")

    def _check_tokens(self, who: str, records: list[Path]) -> None:
        book = Book.read(records)
        self.outcome.turns, self.outcome.faults = book.turns, Counter(book.injected)
        for group in self.delivered:
            for sample in group:
                tokens, faults = book.check(sample)
                self.outcome.tokens += tokens
                self.outcome.wrong += len(faults)
                if faults:
                    self.outcome.breaks(who, f"{len(faults)} trained tokens are wrong: {faults[0]}")


def flat(group: Any) -> list[Plain]:
    """Return the Samples of a group that train."""
    samples = [one for entry in group for one in (entry if isinstance(entry, list) else [entry])]
    return [Plain.of(sample) for sample in samples if not sample.remove_sample] or [_nothing(samples[0])]


def _nothing(sample: Sample) -> Plain:
    return Plain(sample.prompt, [], [], [], "", "", sample.group_index)


def leftovers(pid: int | None = None) -> dict[str, int]:
    """Count the threads, open files and children of this process, or of another."""
    if pid is not None:
        process = Path(f"/proc/{pid}")
        return {
            "threads": len(os.listdir(process / "task")),
            "fds": len(os.listdir(process / "fd")),
            "children": _children(process / "task" / str(pid)),
        }
    gc.collect()
    return {
        # tqdm keeps one thread for all its bars.
        "threads": sum(type(thread).__name__ != "TMonitor" for thread in threading.enumerate()),
        "fds": len(os.listdir("/proc/self/fd")),
        "children": _children(Path(f"/proc/self/task/{os.getpid()}")),
    }


def _children(task: Path) -> int:
    children = task / "children"
    return sum(map(_runs, children.read_text().split())) if children.exists() else 0


def _runs(pid: str) -> bool:
    """True unless the process is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def tasks() -> int:
    """Count the tasks on this loop; run it on the runtime's."""
    return sum(1 for task in asyncio.all_tasks() if not task.done())
