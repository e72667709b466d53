"""Parts `workers` and `nodes`: kill a fleet's workers, or the Ray nodes that they run on, at random moments.

Each prompt is still delivered exactly once.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos_parts.engine import EngineProcess, Plan
from chaos_parts.load import MODES, Drive
from chaos_parts.outcome import Outcome
from chaos_parts.ray_nodes import RayNodes, loopback
from chaos_parts.setting import Setting
from chaos_parts.trials import Trial
from slime_agl.assemble import current
from slime_agl.workers.subprocesses import Subprocess

COUNT, BATCH = 3, 4
# Kills per trial, and steps after which a trial gives up.
KILLS, NODE_KILLS, PATIENCE = 6, 4, 2000
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


def node_trials(setting: Setting) -> list[Trial]:
    """Quick: none."""
    return [
        Trial(
            "nodes",
            (f"SIGKILL of {what}, {mode} {at}",),
            setting.bound(_run_nodes),
            900.0,
            setting.seed * 100 + at,
            mode,
        )
        for mode in MODES
        for at, what in enumerate(() if setting.quick else ("nodes", "raylets", "nodes", "raylets"))
    ]


class Killer(threading.Thread):
    """Calls `kill` until it has killed `kills` times, each after a random pause, while the driver goes on."""

    def __init__(self, chance: random.Random, kills: int, kill: Callable[[random.Random], int]) -> None:
        super().__init__(name="killer", daemon=True)
        self._chance, self._kills, self._kill = chance, kills, kill
        self._over = threading.Event()
        self.killed = 0

    @property
    def done(self) -> bool:
        return self.killed >= self._kills

    def run(self) -> None:
        while self.killed < self._kills and not self._over.wait(self._chance.uniform(*EVERY_SECONDS)):
            self.killed += self._kill(self._chance)

    def end(self) -> None:
        self._over.set()
        self.join()


def _worker_killer() -> Callable[[random.Random], int]:
    killed: set[int] = set()

    def kill(chance: random.Random) -> int:
        # One that was killed a moment ago may still stand in the crew, and would die and be counted once.
        if not (pids := [pid for pid in worker_pids() if pid not in killed]):
            return 0
        killed.add(victim := chance.choice(pids))
        os.kill(victim, signal.SIGKILL)
        return 1

    return kill


def _links() -> list[Any]:
    fleet: Any = current()
    return [] if fleet is None else [member.link for member in fleet._crew]


def worker_pids() -> list[int]:
    """Process ids of the running fleet's subprocesses."""
    return [link._process.pid for link in _links() if isinstance(link, Subprocess) and not link.dead]


def _run(setting: Setting, trial: Trial, folder: Path) -> Outcome:
    killer = Killer(setting.random(trial.who), KILLS, _worker_killer())
    outcome, deaths = _under(killer, setting, trial, folder)
    outcome.faults["SIGKILL of a worker"] += killer.killed
    if deaths != killer.killed:
        outcome.breaks(trial.who, f"{killer.killed} workers were killed, {deaths} deaths are counted")
    return outcome


def _run_nodes(setting: Setting, trial: Trial, folder: Path) -> Outcome:
    whole = "raylets" not in trial.kinds[0]
    victims = 0
    with _cluster() as nodes:

        def kill(chance: random.Random) -> int:
            nonlocal victims
            homes = [link.node for link in _links()]
            inhabited = [node for node in nodes.others if node in homes]
            if not (nodes.full and inhabited):
                return 0
            victim = chance.choice(inhabited)
            victims += homes.count(victim)
            nodes.kill(victim, workers=whole)
            return 1

        killer = Killer(setting.random(trial.who), NODE_KILLS, kill)
        outcome, deaths = _under(killer, setting, trial, folder, nodes.fill)
    outcome.faults[f"SIGKILL of a {'node' if whole else 'raylet'}"] += killer.killed
    if deaths < victims:
        outcome.breaks(trial.who, f"nodes with {victims} workers were killed, {deaths} deaths are counted")
    return outcome


@contextmanager
def _cluster() -> Iterator[RayNodes]:
    import ray

    with loopback():
        nodes = RayNodes()
        try:
            nodes.fill()
            options = {"log_to_driver": False, "configure_logging": False}
            ray.init(address=nodes.address, _node_ip_address="127.0.0.1", **options)
            yield nodes
        finally:
            ray.shutdown()
            nodes.stop()


def _under(
    killer: Killer, setting: Setting, trial: Trial, folder: Path, between: Callable[[], None] = lambda: None
) -> tuple[Outcome, int]:
    """Steps while the killer works: what was found, and the deaths that the fleet counted. between: called by steps."""
    record = folder / "record.jsonl"
    rows = [{"prompt": f"row {at}", "metadata": {"kind": ""}} for at in range(BATCH * 2 * PATIENCE)]
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
        killer.start()
        for _ in range(PATIENCE):
            if killer.done or not drive.step(trial.who):
                break
            between()
        killer.end()
        drive.step(trial.who)
        outcome = drive.close(trial.who, [record])
    outcome.executions = sum(len(group) for group in drive.delivered)
    if not killer.done:
        outcome.breaks(trial.who, f"only {killer.killed} were killed in {drive.steps} steps")
    return outcome, int(drive.metrics["workers/deaths"])
