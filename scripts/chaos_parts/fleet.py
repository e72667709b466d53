"""Part `fleet`: kill and freeze workers and router behind the real sglang-router, with slime's settings.

These disable health checks, so a dead worker stays listed.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos_parts.engine import EngineProcess, Plan, end_with
from chaos_parts.load import Drive
from chaos_parts.outcome import Outcome
from chaos_parts.setting import Setting
from chaos_parts.trials import Trial
from slime_agl.local.engine.router import RouterProcess, start_router

STEPS, BATCH = 3, 4
FIRST_ANSWERS = 6
QUICK = ("a worker is killed and stays dead", "the router is killed and comes back")
AWAY_SECONDS = 2.0
PATIENCE_SECONDS = 20.0
SCENES: dict[str, Callable[[Fleet], None]] = {}


@dataclass(slots=True)
class Fleet:
    engines: list[EngineProcess]
    router: RouterProcess

    def restart_router(self) -> None:
        self.router = start_router(
            [engine.url for engine in self.engines], port=int(self.router.url.rpartition(":")[2])
        )


def scene(name: str) -> Callable[[Callable[[Fleet], None]], Callable[[Fleet], None]]:
    def keep(act: Callable[[Fleet], None]) -> Callable[[Fleet], None]:
        SCENES[name] = act
        return act

    return keep


@scene("a worker is killed and stays dead")
def _(fleet: Fleet) -> None:
    fleet.engines[0].kill()


@scene("a worker is killed and comes back")
def _(fleet: Fleet) -> None:
    fleet.engines[0].kill()
    time.sleep(AWAY_SECONDS)
    fleet.engines[0].start()


@scene("both workers are killed and come back")
def _(fleet: Fleet) -> None:
    for engine in fleet.engines:
        engine.kill()
    time.sleep(AWAY_SECONDS)
    for engine in fleet.engines:
        engine.start()


@scene("a worker is frozen and goes on")
def _(fleet: Fleet) -> None:
    fleet.engines[0].kill(signal.SIGSTOP)
    time.sleep(AWAY_SECONDS)
    fleet.engines[0].kill(signal.SIGCONT)


@scene("the router is killed and comes back")
def _(fleet: Fleet) -> None:
    os.killpg(fleet.router.pid, signal.SIGKILL)
    fleet.router.stop()
    time.sleep(AWAY_SECONDS)
    fleet.restart_router()


def trials(setting: Setting) -> list[Trial]:
    if importlib.util.find_spec("sglang_router") is None:
        return []
    modes = ("sync",) if setting.quick else ("sync", "partial", "async")
    names = QUICK if setting.quick else tuple(SCENES)
    return [Trial("fleet", (name,), setting.bound(_run), 60.0, setting.seed, mode) for mode in modes for name in names]


def _run(setting: Setting, trial: Trial, folder: Path) -> Outcome:
    records = [folder / f"record{at}.jsonl" for at in range(2)]
    plans = [Plan(record, trial.seed * 2 + at, latency=0.1) for at, record in enumerate(records)]
    engines = [EngineProcess(plan, setting.tokenizer).start() for plan in plans]
    fleet = Fleet(engines, start_router([engine.url for engine in engines], log=folder / "router"))
    try:
        driver = _driver(setting, trial, folder, fleet.router.url, records)
        _wait_for_answers(records)
        SCENES[trial.kinds[0]](fleet)
        os.waitpid(driver, 0)
    finally:
        fleet.router.stop()
        for engine in engines:
            engine.stop()
    outcome = Outcome.load(folder / "driver.json")
    outcome.faults[trial.kinds[0]] += 1
    return outcome


def _driver(setting: Setting, trial: Trial, folder: Path, url: str, records: list[Path]) -> int:
    """Fork slime's process first, so that workers can come and go in this one."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            end_with(parent)
            rows = [{"prompt": f"row {at}", "metadata": {"kind": ""}} for at in range(STEPS * BATCH * 2)]
            drive = Drive(
                folder,
                setting.checkpoint,
                url,
                rows,
                batch=BATCH,
                mode=trial.mode,
                section={"runners": {"timeout_seconds": 30.0}},
            )
            for _ in range(STEPS):
                drive.step(trial.who)
            drive.close(trial.who, records).save(folder / "driver.json")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    return pid


def _wait_for_answers(records: list[Path]) -> None:
    """Wait until answers arrive."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if sum(path.read_bytes().count(b"\n") for path in records if path.exists()) >= FIRST_ANSWERS:
            return
        time.sleep(0.02)
