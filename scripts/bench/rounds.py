"""Run rounds of the same work against each subject in turn, with all processes alive."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.frame import Found, Process, interleaved, medians

NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Scale:
    """Counts of ten-turn sessions: `sessions` at 64 at once, `many` at `crowd` at once, `single` one at a time, `held`
    for memory. long: turns of the long session."""

    sessions: int
    many: int
    crowd: int
    single: int
    long: int
    held: int


THOROUGH = Scale(sessions=192, many=512, crowd=512, single=20, long=50, held=300)
QUICK = Scale(sessions=8, many=32, crowd=32, single=2, long=5, held=4)


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over the rounds; for memory the maximum, because later rounds reuse freed memory.

    rate, crowd_rate: turns per second at 64 and 512 sessions at once; cpu, crowd_cpu: CPU milliseconds per turn there.
    added: milliseconds per turn, one at a time, minus a direct call of the engine. long_cpu: CPU milliseconds of the
    long session. held: MiB per 1000 turns kept. turns, errors: over all rounds.
    """

    rate: float
    cpu: float
    added: float
    crowd_rate: float
    crowd_cpu: float
    long_cpu: float
    held: float
    turns: int
    errors: int


def measure(
    material: Path, subjects: Sequence[str], scale: Scale, rounds: int, other: Path | None = None
) -> dict[str, Figures]:
    """Run every workload against every subject, `rounds` times over.

    other: another checkout of this project, measured as subject 'other'.
    """
    with ExitStack() as stack:

        def started(module: str, *arguments: str, checkout: Path | None = None) -> Process:
            process = Process(module, *arguments, checkout=checkout)
            stack.callback(process.stop)
            return process

        engine = started("bench.engine", str(material)).hello["url"]
        load = started("bench.load", str(material))
        running = {name: started("bench.subject", name, engine, str(material)) for name in subjects}
        if other is not None:
            running["other"] = started("bench.subject", "ours", engine, str(material), checkout=other)

        def measured(subject: Process) -> Callable[[bool], Found]:
            return lambda warm: _round(load, subject, engine, QUICK if warm else scale)

        taken = interleaved({name: measured(subject) for name, subject in running.items()}, rounds)
    return {name: _median(found) for name, found in taken.items()}


def _round(load: Process, subject: Process, engine: str, scale: Scale) -> Found:
    found: Found = {"turns": 0, "errors": 0}

    def run(sessions: int, turns: int, at_once: int, length: int = 200, *, name: str = "") -> dict[str, Any]:
        """Run sessions and close them; sessions with a name stay open."""
        kept, name = bool(name), name or f"bench-{next(NUMBERS)}"
        subject.ask(open=name, count=sessions)
        before = subject.ask(cpu=True)
        done = load.ask(
            url=subject.hello["url"], name=name, sessions=sessions, turns=turns, at_once=at_once, length=length
        )
        done["cpu"] = 1000 * (subject.ask(cpu=True) - before)
        found["turns"] += done["turns"]
        found["errors"] += done["errors"]
        done["resident"] = subject.ask(resident=True)
        if not kept:
            subject.ask(close=name)
        return done

    # A process first reuses the memory that it freed at its start, enough for thousands of turns. So measure sessions
    # that are added to twice as many open ones.
    filling = f"filling-{next(NUMBERS)}"
    before = run(2 * scale.held, 10, 4, name=filling)["resident"]
    held = run(scale.held, 10, 4)
    found["held"] = (held["resident"] - before) / 2**20 / held["turns"] * 1000
    subject.ask(close=filling)
    for rate, cpu, sessions, at_once in (
        ("rate", "cpu", scale.sessions, 64),
        ("crowd_rate", "crowd_cpu", scale.many, scale.crowd),
    ):
        done = run(sessions, 10, at_once)
        found[rate], found[cpu] = done["turns"] / done["seconds"], done["cpu"] / done["turns"]
    single = run(scale.single, 10, 1)["p50"]
    direct = load.ask(url=engine, name="", sessions=scale.single, turns=10, at_once=1, length=200, direct=True)
    found["added"] = 1000 * (single - direct["p50"])
    found["long_cpu"] = run(1, scale.long, 1, 600)["cpu"]
    return found


def _median(rounds: list[Found]) -> Figures:
    middle = medians(rounds)
    middle["held"] = max(found["held"] for found in rounds)
    totals = {name: int(sum(found[name] for found in rounds)) for name in ("turns", "errors")}
    return Figures(**{**middle, **totals})
