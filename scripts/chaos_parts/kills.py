"""Part `kills`: kill the driver at random moments and restart it; over its life each prompt trains exactly once.

The weights are a list of what they were trained on. Calls come in slime's order: generate, train, save the weights,
save the data source. Training since the last saved weights is lost with them and has to be repeated.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import agentlightning as agl

from chaos_parts.book import Book, Plain
from chaos_parts.engine import EngineProcess, Plan, end_with
from chaos_parts.load import MODES, converse, flat
from chaos_parts.outcome import Outcome
from chaos_parts.setting import Setting
from chaos_parts.trials import Trial
from slime_agl.data_source import ResumableDataSource
from slime_agl.host import default_args
from slime_agl.rollout import generate, shutdown
from slime_agl.testing import make_args

STEPS, SAVE_INTERVAL, ROWS, BATCH = 6, 2, 7, 3
LIVES = 6
# About how long a life takes on an idle machine; a kill after its end hits nothing and is not counted.
LIFE_SECONDS = 2.5
AGENT = "chaos_parts.kills:agent"
dropped: list[int] = []


def trials(setting: Setting) -> list[Trial]:
    """Quick: one life per mode. Thorough: a hundred per mode."""
    count = 1 if setting.quick else 100
    return [
        Trial("kills", (f"SIGKILL {mode} {at}",), setting.bound(_run), 60.0, setting.seed * 1000 + at, mode, "")
        for mode in MODES
        for at in range(count)
    ]


@agl.rollout
async def agent(task: Any, llm: Any) -> float:
    await converse(task, llm, 2)
    return 1.0


def drop_some(args: Any, group: list[Any], **_: Any) -> bool:
    """A dynamic filter that drops some groups for a counted reason."""
    keep = group[0].prompt not in ("row 2", "row 5")
    if not keep:
        dropped.append(group[0].group_index)
    return keep


def _run(setting: Setting, trial: Trial, folder: Path) -> Outcome:
    """Run a life: kill it once or twice, then let it finish; returns what it trained on."""
    outcome, chance = Outcome(), setting.random(f"{trial.kinds[0]} {trial.seed}")
    record = folder / "record.jsonl"
    rows = "".join(json.dumps({"input": f"row {at}", "metadata": {"kind": ""}}) + "\n" for at in range(ROWS))
    (folder / "prompts.jsonl").write_text(rows, "utf-8")
    (folder / "life").mkdir()
    with EngineProcess(Plan(record, trial.seed, latency=0.06), setting.tokenizer) as engine:
        args = _args(setting, folder, engine.url, trial.mode)
        for life in range(LIVES):
            last = life == LIVES - 1 or (life > 0 and chance.random() < 0.7)
            ended = _life(args, trial.mode, folder, None if last else chance.uniform(0.0, LIFE_SECONDS))
            outcome.faults["SIGKILL " + trial.mode] += ended == signal.SIGKILL
            if ended == 0:
                break
            if ended != signal.SIGKILL:
                outcome.breaks(
                    trial.who, f"life {life} of the driver ended by itself with {ended}; its log is in {folder}"
                )
                return outcome
    _balance(trial, folder, args, record, outcome)
    return outcome


def _args(setting: Setting, folder: Path, engine: str, mode: str) -> Any:
    shape = MODES[mode]
    section = {"agent": AGENT, **shape.get("agl", {}), "runners": {"timeout_seconds": 30.0}}
    flags = {name: value for name, value in shape.items() if name != "agl"}
    return make_args(
        engine,
        setting.checkpoint,
        agl=section,
        prompt_data=str(folder / "prompts.jsonl"),
        rollout_shuffle=True,
        rollout_batch_size=BATCH,
        over_sampling_batch_size=BATCH + 2,
        n_samples_per_prompt=2,
        save=str(folder / "life"),
        load=str(folder / "life"),
        num_rollout=STEPS,
        dynamic_sampling_filter_path="chaos_parts.kills.drop_some",
        **flags,
    )


def _life(args: Any, mode: str, folder: Path, kill_at: float | None) -> int:
    """Run one driver process. Returns the signal that ended it, or minus its status. kill_at: seconds from start."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            end_with(parent)
            Life(args, folder / "life").go(ahead=mode == "async")
            shutdown()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if kill_at is not None:
        time.sleep(kill_at)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


class Life:
    """The driver from its start to its end or death."""

    def __init__(self, args: Any, directory: Path) -> None:
        self.args = args
        self.source = ResumableDataSource(args)
        self.tracker = directory / "latest.json"
        self.first, self.weights = 0, []
        if self.tracker.exists():
            step, self.weights = json.loads(self.tracker.read_text("utf-8"))
            self.first = step + 1
        self.source.load(self.first - 1)

    def go(self, *, ahead: bool) -> None:
        coming = self.generate(self.first) if ahead and self.first < STEPS else None
        for step in range(self.first, STEPS):
            batch = self.generate(step) if coming is None else coming
            coming = self.generate(step + 1) if ahead and step + 1 < STEPS else None
            self.weights += batch
            if (step + 1) % SAVE_INTERVAL == 0:
                part = self.tracker.with_suffix(".part")
                part.write_text(json.dumps([step, self.weights]), "utf-8")
                part.replace(self.tracker)
                self.source.save(step)

    def generate(self, step: int) -> list[Any]:
        dropped.clear()
        output = generate(self.args, step, self.source)
        batch = [[group[0].group, [asdict(sample) for sample in group]] for group in map(flat, output.samples)]
        return batch + [[number, []] for number in dropped]


def _balance(trial: Trial, folder: Path, args: Any, record: Path, outcome: Outcome) -> None:
    """Check that trained and remaining prompts are those given out, once each, and that their tokens are right."""
    step, weights = json.loads((folder / "life" / "latest.json").read_text("utf-8"))
    source = ResumableDataSource(args)
    source.load(step)
    left = [group[0].group_index for group in source.buffer]
    counts = Counter([number for number, _ in weights] + left)
    twice = sorted(number for number, count in counts.items() if count > 1)
    lost = sorted(set(range(source.sample_group_index)) - set(counts))
    outcome.twice, outcome.lost = len(twice), len(lost)
    if twice:
        outcome.breaks(trial.who, f"groups {twice} train twice over the life of the run")
    if lost:
        outcome.breaks(trial.who, f"groups {lost} are lost")
    fresh = ResumableDataSource(_fresh(args))
    prompts = [fresh.get_samples(1)[0][0].prompt for _ in range(source.sample_group_index)]
    book = Book.read([record])
    outcome.turns = book.turns
    for number, samples in weights:
        for fields in samples:
            sample = Plain(**fields)
            outcome.executions += 1
            if sample.prompt != prompts[number]:
                outcome.breaks(
                    trial.who, f"group {number} is {sample.prompt!r}, the data source gave {prompts[number]!r}"
                )
            tokens, faults = book.check(sample)
            outcome.tokens += tokens
            outcome.wrong += len(faults)
            if faults:
                outcome.breaks(trial.who, f"{len(faults)} trained tokens are wrong: {faults[0]}")


def _fresh(args: Any) -> Any:
    return default_args(
        prompt_data=args.prompt_data, rollout_shuffle=True, n_samples_per_prompt=2, hf_checkpoint=args.hf_checkpoint
    )
