"""Rollouts on one scripted engine, with agents in workers."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from slime_agl import rollout
from slime_agl.record.reading import read_run
from slime_agl.testing import FakeReplay, FakeSGLang, ListDataSource, make_args

AGENT = "tests.workers.agents.four_turns"
ROWS = ["one", "two", "three", "four"]
TURNS = 4
REPLAY = FakeReplay()
PARKING = {"partial_rollout": True, "n_samples_per_prompt": 1, "rollout_batch_size": 2, "over_sampling_batch_size": 4}


class Rig:
    """Rollouts on one engine, whose fleet lasts from test to test, as it takes seconds to start."""

    def __init__(self, fake: FakeSGLang, checkpoint: Path, records: Path) -> None:
        self.fake, self.records = fake, records
        self._checkpoint, self._step = checkpoint, -1

    def run(
        self, count: int = 2, *, evaluation: bool = False, agent: str = AGENT, source: Any = None, **overrides: Any
    ) -> Any:
        """A step. source: instead of one that begins anew."""
        self._step += 1
        section = {"agent": agent, "workers": {"count": count, "slots": 4}, "record_dir": str(self.records)}
        given = {"agl": section, "rollout_batch_size": len(ROWS), "n_samples_per_prompt": 2, **overrides}
        args = make_args(self.fake, self._checkpoint, **given)
        return rollout.generate(args, self._step, source or ListDataSource(ROWS, 2), evaluation=evaluation)

    def run_with_replay(self, count: int = 2) -> list[Any]:
        """Samples of a step whose engine gives routed experts and top-p sets."""
        self.fake.replay = REPLAY
        replay = {"use_rollout_routing_replay": True, "num_layers": REPLAY.layers, "moe_router_topk": REPLAY.choices}
        try:
            output = self.run(count, **replay, rollout_top_p=0.9)
        finally:
            self.fake.replay = None
        return [sample for group in output.samples for sample in group]

    def record(self) -> Any:
        """Of the latest step."""
        return next(record for record in read_run(self.records) if record.header["step"] == self._step)


def trained(output: Any) -> list[Any]:
    return [
        (sample.index, sample.tokens, sample.loss_mask, sample.rollout_log_probs, sample.reward)
        for group in output.samples
        for sample in group
    ]


def echo(request: Any) -> str:
    return f"answer to {len(request.input_ids)} ids"


def at_requests(numbers: set[int], act: Callable[[], None]) -> Callable[[Any], str]:
    """A responder that calls `act` at these requests, counted from 1."""
    count = itertools.count(1)

    def respond(request: Any) -> str:
        if next(count) in numbers:
            act()
        return echo(request)

    return respond


def indices(outputs: Iterable[Any]) -> list[int]:
    """Of the samples, sorted."""
    return sorted(sample.index for output in outputs for group in output.samples for sample in group)


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.02)


def parked_steps(
    rig: Rig, count: int, steps: int, between: Callable[[int], None] = lambda _: None, *, partial: int = 2
) -> list[Any]:
    """Steps of two groups in partial mode. Even ones take four, of which two finish; odd ones finish the parked two.

    between: called after each step with its number. partial: tokens of an aborted answer.
    """
    # Each prompt once, so that no answer belongs to two samples.
    fake, source = rig.fake.abort_partial(partial), ListDataSource([f"row {number}" for number in range(2 * steps)])
    fake.answers.clear()
    outputs = []
    for number in range(steps):
        over = threading.Event()
        helper = threading.Thread(target=_finish_two, args=(fake, over))
        if number % 2 == 0:
            fake.hold()
            helper.start()
        try:
            outputs.append(rig.run(count, source=source, **PARKING))
        finally:
            over.set()
            fake.release()
        assert fake.in_flight == 0
        between(number)
    return outputs


def _finish_two(fake: FakeSGLang, over: threading.Event) -> None:
    """Answer one request at a time, the oldest, when every agent waits for one: so they take turns."""
    turns_left = deque([TURNS] * PARKING["over_sampling_batch_size"])
    while len(turns_left) > PARKING["rollout_batch_size"]:
        until(lambda: over.is_set() or fake.in_flight == len(turns_left))
        fake.release(1)
        if left := turns_left.popleft() - 1:
            turns_left.append(left)
