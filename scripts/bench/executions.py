"""Measure the CPU of executions from end to end: `generate` beside the gateway alone and the agents alone.

The engine answers at once, from a process of its own, and the agents are as cheap as agents can be, so what is left is
this project's own. All figures are CPU milliseconds per execution, from one interleaved run. `own` is what `generate`
costs outside the gateway's threads, minus the agents alone. The second table compares the gateway's CPU of late turns
of one long conversation with early ones, and subtracts that of an empty proxy, which moves as many bytes.
"""

from __future__ import annotations

import argparse
import inspect
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import frame
from bench.__main__ import SOURCES
from bench.frame import Found, Process, interleaved, medians
from bench.material import write_material

MODES = ("async", "thread")
# Turns of an execution, and executions per measurement.
LOADS = {1: 256, 4: 128, 20: 32}
WORKS = ("generate", "gateway", "agent")
LONG, EARLY, LATE, WHEN = 400, slice(4, 16), slice(-20, None), ("early", "late")
COLUMNS = ("generate", "of it gateway", "gateway alone", "agents alone", "own", "own per turn")


def measure(
    material: Path, loads: dict[int, int], rounds: int, *, modes: Sequence[str], long: int, other: Path | None = None
) -> dict[str, Found]:
    """Return medians by subject: a mode, led by 'other ' for the other checkout."""
    os.environ["BENCH_MATERIAL"] = str(material)
    with ExitStack() as stack:

        def started(module: str, *arguments: str, checkout: Path | None = None) -> Process:
            process = Process(module, *arguments, checkout=checkout)
            stack.callback(process.stop)
            return process

        engine = started("bench.engine", str(material)).hello["url"]
        running = {mode: started("bench.execution", mode, engine, str(material)) for mode in modes}
        if other is not None:
            for mode in modes:
                running[f"other {mode}"] = started("bench.execution", mode, engine, str(material), checkout=other)

        def measured(process: Process) -> Callable[[bool], Found]:
            return lambda warm: _round(process, dict.fromkeys(loads, 16) if warm else loads, 30 if warm else long)

        taken = interleaved({name: measured(process) for name, process in running.items()}, rounds)
    return {name: medians(found) for name, found in taken.items()}


def _round(process: Process, loads: dict[int, int], long: int) -> Found:
    found: Found = {}
    for turns, executions in loads.items():
        spent = {work: process.ask(work=work, turns=turns, executions=executions) for work in WORKS}
        generate, gateway, agent = (spent[work] for work in WORKS)
        own = generate["all"] - generate["gateway"] - agent["all"]
        values = (generate["all"], generate["gateway"], gateway["gateway"], agent["all"], own, own / turns)
        found |= {f"{turns} {name}": value for name, value in zip(COLUMNS, values, strict=True)}
    spent = process.ask(work="history", turns=long)
    for name in ("each", "empty"):
        found |= {f"{name} early": statistics.median(spent[name][EARLY])}
        found |= {f"{name} late": statistics.median(spent[name][LATE])}
    return found


def rows(figures: dict[str, Found], loads: dict[int, int]) -> list[list[str]]:
    out = [["CPU per execution, ms", *COLUMNS]]
    for name, found in figures.items():
        for turns in loads:
            values = [f"{found[f'{turns} {column}']:.2f}" for column in COLUMNS]
            out.append([f"{name}, {turns} turn{'s' * (turns > 1)}", *values])
    return out


def history(figures: dict[str, Found], long: int) -> list[list[str]]:
    out = [["CPU of a turn, ms", "turn 10", f"turn {long}", "ratio", "empty proxy", "ratio without it"]]
    for name, found in figures.items():
        early, late, bytes_early, bytes_late = (found[f"{what} {when}"] for what in ("each", "empty") for when in WHEN)
        ratios = late / early, (late - bytes_late) / (early - bytes_early)
        values = (early, late, ratios[0], bytes_late, ratios[1])
        out.append([name, *(f"{value:.2f}" for value in values)])
    return out


def profile(material: Path, mode: str, **command: object) -> str:
    """Where the CPU of a thread goes in one work, as a table. command: see `bench.execution`."""
    os.environ["BENCH_MATERIAL"] = str(material)
    with ExitStack() as stack:
        engine = Process("bench.engine", str(material))
        stack.callback(engine.stop)
        process = Process("bench.execution", mode, engine.hello["url"], str(material))
        stack.callback(process.stop)
        process.ask(work=command["work"], turns=2, executions=16)
        return frame.table(process.ask(**command)["rows"])


def main() -> None:
    parser = frame.options("executions", __doc__, rounds=5)
    parser.add_argument("--mode", choices=MODES, action="append", help="measure only this mode of runners")
    parser.add_argument("--other", type=Path, metavar="DIR", help="measure another checkout of this project beside it")
    parser.add_argument("--profile", choices=[*WORKS, "history"], help="show instead where the CPU of this work goes")
    parser.add_argument("--thread", default="agl-runtime", help="with --profile: the thread, such as agl-gateway")
    parser.add_argument("--functions", action="store_true", help="with --profile: by function")
    parser.add_argument("--turns", type=int, default=4, help="with --profile: turns of an execution")
    options = parser.parse_args()
    modes = options.mode or MODES
    if options.quick:
        loads, long, rounds = dict.fromkeys(LOADS, 16), 40, 1
    else:
        loads, long, rounds = LOADS, LONG, options.rounds
    with tempfile.TemporaryDirectory(prefix="slime-agl-bench-") as folder:
        sources = [argparse, inspect] if options.quick else SOURCES
        material = write_material(Path(folder), sources, small=options.quick)
        if options.profile:
            command = {"work": options.profile, "turns": options.turns, "profile": options.thread}
            executions = loads.get(options.turns, 16) * rounds
            print(profile(material, modes[0], executions=executions, functions=options.functions, **command))
            return
        figures = measure(material, loads, rounds, modes=modes, long=long, other=options.other)
    shown = frame.markdown if options.markdown else frame.table
    print(shown(rows(figures, loads)), shown(history(figures, long)), sep="\n\n")


if __name__ == "__main__":
    main()
