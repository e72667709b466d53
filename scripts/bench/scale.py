"""Measure executions per second of four-turn agents in one process and in fleets of workers.

The agents are OpenAI clients, one client per execution, and the engine answers at once, from a process of its own.
Rounds alternate between the fleets, so that a slow moment of the machine falls on all of them. The manager's CPU is the
time that this process spends per execution; without workers that is all of it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from slime_agl.rollout import generate, shutdown
from slime_agl.testing import ListDataSource, make_args, save_tiny_checkpoint, tiny_tokenizer

AGENT = "bench.scale_agent.four_turns"
GROUP = 8
ANSWERS = ["a short answer", "one that is somewhat longer than the first", "and a third"]


@dataclass
class Measured:
    """Per round: executions per second, and CPU milliseconds of this process per execution."""

    rates: list[float] = field(default_factory=list)
    manager: list[float] = field(default_factory=list)


@contextmanager
def engine(directory: Path) -> Iterator[Any]:
    tokenizer = tiny_tokenizer()
    ids = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in ANSWERS]
    path = directory / "answers.json"
    path.write_text(json.dumps({"answers": ids}))
    process = subprocess.Popen([sys.executable, "-m", "bench.engine", str(path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield SimpleNamespace(url=json.loads(process.stdout.readline())["url"])
    finally:
        process.kill()
        process.wait()


def step(args: Any, number: int, groups: int) -> tuple[float, float]:
    """Run a step; returns its wall seconds, and this process's CPU seconds."""
    source = ListDataSource([f"question {at}" for at in range(groups)], GROUP)
    wall, cpu = time.perf_counter(), time.process_time()
    output = generate(args, number, source)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert len(output.samples) == groups
    return wall, cpu


def measure(counts: list[int], executions: int, rounds: int) -> dict[int, Measured]:
    groups = executions // GROUP
    results = {count: Measured() for count in counts}
    with tempfile.TemporaryDirectory() as temporary, engine(Path(temporary)) as server:
        checkpoint = save_tiny_checkpoint(Path(temporary) / "checkpoint")
        for _ in range(rounds):
            for count in counts:
                section = {"agent": AGENT, "workers": {"count": count}, "runners": {"max_concurrency": 128}}
                args = make_args(server, checkpoint, rollout_batch_size=groups, n_samples_per_prompt=GROUP, agl=section)
                step(args, 0, groups)  # warm
                wall, cpu = step(args, 1, groups)
                shutdown()
                results[count].rates.append(executions / wall)
                results[count].manager.append(1000 * cpu / executions)
    return results


def table(results: dict[int, Measured]) -> str:
    base = statistics.median(next(iter(results.values())).rates)
    lines = ["workers   executions/s   ratio   manager's CPU per execution (ms)"]
    for count, measured in results.items():
        rate, manager = statistics.median(measured.rates), statistics.median(measured.manager)
        lines.append(f"{count:7}   {rate:12.1f}   {rate / base:5.2f}   {manager:8.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench/scale", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--executions", type=int, default=256, help=f"per step, a multiple of {GROUP}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args()
    if options.quick:
        options.executions, options.rounds = 32, 1
    logging.basicConfig(level=logging.WARNING)
    print(table(measure(options.workers, options.executions, options.rounds)))


if __name__ == "__main__":
    main()
