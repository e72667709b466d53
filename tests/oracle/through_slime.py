"""Programs as Agent Lightning agents, run by the function that slime calls, for several steps."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter, defaultdict
from typing import Any

import agentlightning as agl
import aiohttp

from slime_agl.rollout import generate, shutdown
from slime_agl.testing.host import ListDataSource, make_args
from slime_agl.testing.paths import importable
from slime_agl.testing.tokenizer import save_tiny_checkpoint
from tests.conftest import flat
from tests.oracle.checker import Findings, Record, check
from tests.oracle.direct import FOREVER, patience
from tests.oracle.engine import OracleEngine
from tests.oracle.families import family
from tests.oracle.programs import Door, Program

MODES: dict[str, dict[str, Any]] = {
    "sync": {"over_sampling_batch_size": 5},
    "partial": {"over_sampling_batch_size": 5, "partial_rollout": True},
    "async": {"agl": {"async": {"enabled": True, "max_staleness": 2}}},
}
BATCH, SIBLINGS = 3, 3
ROWS = [f"row {number}" for number in range(7)]


class Agents:
    """One program per attempt. ran: by attempt id; rows, failed: each one's row, and those that raised."""

    def __init__(self, engine: OracleEngine, seed: int) -> None:
        self.ran: dict[str, Program] = {}
        self.rows: dict[str, str] = {}
        self.failed: set[str] = set()
        self._engine, self._seed, self._numbers = engine, seed, itertools.count()

    def agent(self) -> Any:
        @agl.rollout
        async def run(task: Any, llm: Any) -> float:
            number, attempt = next(self._numbers), llm.endpoint.rstrip("/").split("/")[-2]
            rng = random.Random(f"{self._seed} {number}")
            async with aiohttp.ClientSession() as http:
                door = Door(http, llm.endpoint.rstrip("/"), llm.api_key or "none", True)
                program = Program(number, rng, self._engine, door, self._engine.language)
                self.ran[attempt], self.rows[attempt] = program, task["prompt"]
                await program.run(rng.randrange(1, 8))
                if rng.random() < 0.1:
                    self.failed.add(attempt)
                    raise RuntimeError("as planned")
            return float(number)

        return run


def run_steps(mode: str, steps: int, seed: int) -> Findings:
    """Run steps of `slime_agl.rollout.generate` in one of MODES, and judge each returned Sample."""
    found = Findings()
    given = MODES[mode]
    with OracleEngine() as engine, tempfile.TemporaryDirectory() as folder, patience(FOREVER):
        engine.language = family("tiny")
        agents = Agents(engine, seed)
        with importable(agents.agent()) as path:
            section = {"agent": path, "runners": {"timeout_seconds": 300.0}, **given.get("agl", {})}
            args = make_args(
                engine.url,
                save_tiny_checkpoint(folder),
                rollout_batch_size=BATCH,
                n_samples_per_prompt=SIBLINGS,
                num_rollout=steps,
                rollout_max_response_len=4096,
                custom_reward_post_process_path="slime_agl.reward.normalize_rewards",
                **given | {"agl": section},
            )
            source = ListDataSource(ROWS, SIBLINGS)
            counts: Counter[str] = Counter()
            try:
                outputs = []
                for step in range(steps):
                    outputs.append(generate(args, step, source))
                    counts.update(_counts(outputs[-1].metrics))
            finally:
                shutdown()
        record = Record(engine)
        for output in outputs:
            found.add(_judged(record, agents, output.samples))
        found.faults += _unlike(
            found, counts, sum(len(answer.ids) for answer in engine.answers), all_of_it=mode == "sync"
        )
    found.faults = [f"generate, {mode}, seed {seed}: {fault}" for fault in found.faults + engine.surprises]
    return found


def _judged(record: Record, agents: Agents, nest: Any) -> Findings:
    found = Findings()
    for group in nest:
        samples = [sample for entry in group for sample in (entry if isinstance(entry, list) else [entry])]
        if len({(sample.group_index, sample.prompt) for sample in samples}) != 1:
            found.faults.append(f"a group holds {sorted({(s.group_index, s.prompt) for s in samples})}")
        if ROWS[samples[0].group_index % len(ROWS)] != samples[0].prompt:
            found.faults.append(f"group {samples[0].group_index} has the prompt {samples[0].prompt!r}")
        if len(group) != SIBLINGS:
            found.faults.append(f"a group has {len(group)} executions")
    executions: dict[int, list[Any]] = defaultdict(list)
    for sample in flat(nest):
        executions[sample.rollout_id].append(sample)
    for number, samples in executions.items():
        found.add(_judged_execution(record, agents, number, samples))
    return found


def _judged_execution(record: Record, agents: Agents, number: int, samples: list[Any]) -> Findings:
    attempts = {sample.metadata["agl"]["attempt_id"] for sample in samples}
    if len(attempts) != 1 or {sample.index for sample in samples} != {number}:
        return Findings([f"Samples with rollout_id {number} are of attempts {attempts}, index {samples[0].index}"])
    attempt = attempts.pop()
    program, faults = agents.ran[attempt], []
    if agents.rows[attempt] != samples[0].prompt:
        faults.append(f"the agent was given {agents.rows[attempt]!r}, its Samples are of {samples[0].prompt!r}")
    if attempt in agents.failed:
        trained = sum(sum(sample.loss_mask) for sample in samples)
        faults += [f"{trained} tokens of an agent that failed train"] if trained else []
        return Findings(faults, 1)
    if {sample.reward for sample in samples} != {float(program.number)}:
        faults.append(f"execution {program.number} has the rewards {[sample.reward for sample in samples]}")
    found = check(record, program, samples)
    found.faults += faults
    return found


def _counts(metrics: dict[str, Any]) -> Counter[str]:
    prefix = "rollout/agl/"
    kinds = ("sampled_tokens", "trained_tokens", "untrained_tokens/", "forks/")
    return Counter({k.removeprefix(prefix): v for k, v in metrics.items() if k.removeprefix(prefix).startswith(kinds)})


def _unlike(found: Findings, counts: Counter[str], sampled: int, *, all_of_it: bool) -> list[str]:
    """Compare the metrics with the findings. all_of_it: nothing is unfinished, so they must count every token."""
    untrained = sum(count for name, count in counts.items() if name.startswith("untrained_tokens/"))
    told = counts["sampled_tokens"], counts["trained_tokens"]
    faults = []
    if told[0] != told[1] + untrained:
        faults.append(f"{told[0]} tokens were counted as sampled, {told[1]} trained and {untrained} untrained ones")
    if told[1] != found.trained:
        faults.append(f"{told[1]} tokens were counted as trained, {found.trained} do")
    if all_of_it and told[0] != sampled:
        faults.append(f"{told[0]} tokens were counted as sampled, the engine sampled {sampled}: {dict(counts)}")
    found.forks += Counter({k.removeprefix("forks/"): v for k, v in counts.items() if k.startswith("forks/")})
    return faults
