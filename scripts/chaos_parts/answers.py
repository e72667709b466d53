"""Part `engine`: an engine whose answers and connections break, one fault at a time and many at once."""

from __future__ import annotations

from pathlib import Path

from chaos_parts.engine import EngineProcess, Plan
from chaos_parts.engine_faults import FAULTS
from chaos_parts.load import Drive
from chaos_parts.outcome import Outcome
from chaos_parts.setting import Setting
from chaos_parts.trials import Trial

TOGETHER = 16
PATIENCE = 1.0
MODES = ("sync", "partial", "async")


def trials(setting: Setting) -> list[Trial]:
    """Quick: all faults, many at a time. Thorough: also each alone in every mode."""
    quick = [kind for kind in FAULTS if not FAULTS[kind].waits]
    slow = tuple(kind for kind in FAULTS if FAULTS[kind].waits)
    setting.random("engine").shuffle(quick)
    bunches = [*(tuple(quick[at : at + TOGETHER]) for at in range(0, len(quick), TOGETHER)), slow]
    found = [
        Trial("engine", kinds, setting.bound(_run), 45.0, setting.seed, MODES[at % 3])
        for at, kinds in enumerate(bunches)
    ]
    if not setting.quick:
        found += [Trial("engine", tuple(quick), setting.bound(_run), 120.0, setting.seed, mode) for mode in MODES]
        found += [
            Trial("engine", (kind,), setting.bound(_run), 45.0, setting.seed, mode) for kind in FAULTS for mode in MODES
        ]
    return found


def _run(setting: Setting, trial: Trial, folder: Path) -> Outcome:
    record = folder / "record.jsonl"
    with EngineProcess(Plan(record, trial.seed), setting.tokenizer, FAULTS) as engine:
        rows = [{"prompt": f"{kind} #{at}", "metadata": _metadata(kind)} for at, kind in enumerate(trial.kinds)]
        rows += [{"prompt": f"steady {at}", "metadata": {"kind": ""}} for at in range(2 * len(rows) + 6)]
        drive = Drive(
            folder,
            setting.checkpoint,
            engine.url,
            rows,
            batch=len(trial.kinds) + 1,
            mode=trial.mode,
            section={"runners": {"timeout_seconds": 12.0}},
        )
        who = trial.who
        for _ in range(2):
            drive.step(who)
        outcome = drive.close(who, [record])
    missed = [kind for kind in trial.kinds if not outcome.faults[kind]]
    if missed and not outcome.broken:
        outcome.breaks(who, f"was never injected: {', '.join(missed)}")
    return outcome


def _metadata(kind: str) -> dict[str, object]:
    return {"kind": kind, "patience": PATIENCE if FAULTS[kind].waits else 60.0}
