"""Shared parts of the benchmarks: child processes, rounds of the same work on each subject in turn, options and tables.

Subjects are measured alternately, so that a slow moment of the machine falls on all of them, and medians are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Found = dict[str, float]
SCRIPTS = Path(__file__).parents[1]


def options(name: str, words: str, *, rounds: int = 3) -> argparse.ArgumentParser:
    """Make the parser of a benchmark's command, with the options that all of them have."""
    parser = argparse.ArgumentParser(prog=f"scripts/bench/{name}", description=words)
    parser.add_argument("--quick", action="store_true", help="a smoke test; its figures mean nothing")
    parser.add_argument("--markdown", action="store_true", help="print the copy for the README")
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds of interleaved runs; medians are shown")
    return parser


class Process:
    """A child process that answers each line of JSON on stdin with one on stdout.

    hello: its first line. checkout: the checkout of this project to measure, by default this one; `bench` is always
    this one's.
    """

    def __init__(self, module: str, *arguments: str, checkout: Path | None = None) -> None:
        path = {} if checkout is None else {"PYTHONPATH": f"{checkout.resolve()}{os.pathsep}{SCRIPTS}"}
        self._child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env={**os.environ, **path},
        )
        self.hello: Any = self._read()

    def ask(self, **command: Any) -> Any:
        self._child.stdin.write(json.dumps(command) + "\n")
        self._child.stdin.flush()
        return self._read()

    def stop(self) -> None:
        self._child.stdin.close()
        self._child.terminate()
        self._child.wait()
        self._child.stdout.close()

    def _read(self) -> Any:
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._child.args[2]} ended with status {self._child.wait()}; its error stands above")
        return json.loads(line)


def interleaved(subjects: Mapping[str, Callable[[bool], Found]], rounds: int) -> dict[str, list[Found]]:
    """Measure every subject once per round. subjects: called with True in the warm-up round, which is not counted."""
    taken: dict[str, list[Found]] = {name: [] for name in subjects}
    for number in range(rounds + 1):
        for name, measure in subjects.items():
            found = measure(number == 0)
            if number:
                taken[name].append(found)
    return taken


def medians(rounds: Sequence[Found]) -> Found:
    return {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows for the terminal; the first is the head, the first column is left-aligned."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest))
