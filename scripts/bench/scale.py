"""Measure executions per second of four-turn agents in one process and in fleets of workers.

The agents are OpenAI clients, one client per execution, and the engine answers at once, from a process of its own.
Rounds alternate between the fleets, so that a slow moment of the machine falls on all of them. The manager's CPU is the
time that this process spends per execution; without workers that is all of it.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from chaos_parts.ray_nodes import loopback

from bench import frame
from bench.frame import Found, Process, interleaved, medians
from slime_agl.rollout import generate, shutdown
from slime_agl.testing import ListDataSource, make_args, save_tiny_checkpoint, tiny_tokenizer

AGENT = "bench.scale_agent.four_turns"
GROUP = 8
ANSWERS = ["a short answer", "one that is somewhat longer than the first", "and a third"]


def write_answers(directory: Path) -> Path:
    """Write what the engine answers."""
    tokenizer = tiny_tokenizer()
    ids = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in ANSWERS]
    path = directory / "answers.json"
    path.write_text(json.dumps({"answers": ids}))
    return path


def step(args: Any, number: int, groups: int) -> tuple[float, float]:
    """Run a step; returns its wall seconds, and this process's CPU seconds."""
    source = ListDataSource([f"question {at}" for at in range(groups)], GROUP)
    wall, cpu = time.perf_counter(), time.process_time()
    output = generate(args, number, source)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert len(output.samples) == groups
    return wall, cpu


def measure(counts: list[int], executions: int, rounds: int) -> dict[int, Found]:
    """Medians by number of workers: executions per second, and CPU milliseconds of this process per execution."""
    groups = executions // GROUP
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        engine = Process("bench.engine", str(write_answers(folder)))
        checkpoint = save_tiny_checkpoint(folder / "checkpoint")

        def measured(count: int) -> Callable[[bool], Found]:
            section = {"agent": AGENT, "workers": {"count": count}, "runners": {"max_concurrency": 128}}
            url = engine.hello["url"]
            args = make_args(url, checkpoint, rollout_batch_size=groups, n_samples_per_prompt=GROUP, agl=section)

            def run(warm: bool) -> Found:
                if warm:
                    return {}  # every round begins with a step that is not measured
                step(args, 0, groups)
                wall, cpu = step(args, 1, groups)
                shutdown()
                return {"rate": executions / wall, "manager": 1000 * cpu / executions}

            return run

        try:
            taken = interleaved({str(count): measured(count) for count in counts}, rounds)
        finally:
            engine.stop()
    return {int(count): medians(found) for count, found in taken.items()}


@contextmanager
def ray_cluster(cpus: int) -> Iterator[None]:
    """Start Ray on this machine: workers become its actors."""
    import ray

    with loopback():
        # Logical CPUs, one per worker and one for the driver: Ray places by them, the cores are what they are.
        ray.init(num_cpus=cpus, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()


def rows(results: dict[int, Found]) -> list[list[str]]:
    base = next(iter(results.values()))["rate"]
    out = [["workers", "executions/s", "ratio", "manager's CPU per execution, ms"]]
    for count, found in results.items():
        rate = found["rate"]
        out.append([str(count), f"{rate:.1f}", f"{rate / base:.2f}", f"{found['manager']:.2f}"])
    return out


def main() -> None:
    parser = frame.options("scale", __doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--executions", type=int, default=256, help=f"per step, a multiple of {GROUP}")
    parser.add_argument("--ray", action="store_true", help="workers as Ray's actors, not as plain subprocesses")
    options = parser.parse_args()
    if options.quick:
        options.executions, options.rounds = 32, 1
    logging.basicConfig(level=logging.WARNING)
    with ray_cluster(1 + max(options.workers)) if options.ray else nullcontext():
        found = rows(measure(options.workers, options.executions, options.rounds))
    print((frame.markdown if options.markdown else frame.table)(found))


if __name__ == "__main__":
    main()
