"""Part `workers`: kill workers of a fleet at random moments; each prompt is still delivered exactly once."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

from chaos_parts.engine import EngineProcess, Plan
from chaos_parts.load import MODES, Drive
from chaos_parts.outcome import Outcome
from chaos_parts.setting import Setting
from chaos_parts.trials import Trial
from slime_agl.assemble import current
from slime_agl.workers.subprocesses import Subprocess

COUNT, BATCH = 3, 4
# Kills per trial, and steps without a kill in a row after which a trial gives up.
KILLS, PATIENCE = 6, 30
TRIALS = 6  # per mode: 108 kills in all
EVERY_SECONDS = (0.2, 3.0)


def trials(setting: Setting) -> list[Trial]:
    """Quick: none, because a fleet needs seconds to start; the tests kill workers, too."""
    return [
        Trial(
            "workers", (f"SIGKILL of workers, {mode} {at}",), setting.bound(_run), 400.0, setting.seed * 100 + at, mode
        )
        for mode in MODES
        for at in range(0 if setting.quick else TRIALS)
    ]


class Killer(threading.Thread):
    """Kills `KILLS` workers, one after another, each after a random pause, while the driver goes on."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(name="killer", daemon=True)
        self._chance, self._over = chance, threading.Event()
        self.killed = 0

    def run(self) -> None:
        while self.killed < KILLS and not self._over.wait(self._chance.uniform(*EVERY_SECONDS)):
            if pids := _pids():
                os.kill(self._chance.choice(pids), signal.SIGKILL)
                self.killed += 1

    def end(self) -> None:
        self._over.set()
        self.join()


def _pids() -> list[int]:
    fleet: Any = current()
    links = [] if fleet is None else [member.link for member in fleet._crew]
    return [link._process.pid for link in links if isinstance(link, Subprocess) and not link.dead]


def _run(setting: Setting, trial: Trial, folder: Path) -> Outcome:
    record = folder / "record.jsonl"
    rows = [{"prompt": f"row {at}", "metadata": {"kind": ""}} for at in range(BATCH * 64)]
    with EngineProcess(Plan(record, trial.seed, latency=0.1), setting.tokenizer) as engine:
        drive = Drive(
            folder,
            setting.checkpoint,
            engine.url,
            rows,
            batch=BATCH,
            mode=trial.mode,
            section={
                "agent": "chaos_parts.load:steady",
                "workers": {"count": COUNT, "slots": 4, "retries": 2 * KILLS},
                "runners": {"timeout_seconds": 60.0},
            },
        )
        drive.step(trial.who)
        killer = Killer(setting.random(trial.who))
        killer.start()
        for _ in range(PATIENCE):
            if killer.killed >= KILLS or not drive.step(trial.who):
                break
        killer.end()
        drive.step(trial.who)
        outcome = drive.close(trial.who, [record])
    outcome.faults["SIGKILL of a worker"] += killer.killed
    outcome.executions = sum(len(group) for group in drive.delivered)
    deaths = int(drive.metrics["workers/deaths"])
    if deaths != killer.killed:
        outcome.breaks(trial.who, f"{killer.killed} workers were killed, {deaths} deaths are counted")
    return outcome
