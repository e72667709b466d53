"""Whole rollouts whose agents run in actors of a Ray cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from slime_agl import rollout
from slime_agl.assemble import current
from slime_agl.testing import FakeSGLang, save_tiny_checkpoint
from tests.workers.rig import REPLAY, ROWS, Rig, at_requests, echo, indices, parked_steps, trained, until

pytestmark = pytest.mark.ray
COUNT = 3


@pytest.fixture(scope="module")
def shared(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("fleet")
    with FakeSGLang() as fake:
        yield Rig(fake, save_tiny_checkpoint(directory / "checkpoint"), directory / "records")
        rollout.shutdown()


@pytest.fixture
def rig(shared: Rig, cluster: Any) -> Rig:
    """All nodes are there, and all workers of the fleet that an earlier test has left."""
    cluster.fill()
    shared.fake.answer_with(echo)
    if hasattr(current(), "_crew"):
        until(lambda: len(links()) == COUNT)
    return shared


def links() -> list[Any]:
    return [member.link for member in cast(Any, current())._crew]


def pid(link: Any) -> int:
    return cast(Any, current()).run(link.call("hello")).pid


def settled(rig: Rig, output: Any, token_exact: Any) -> None:
    """Each prompt delivered once, all of them trained, every token as the engine gave it, and nothing under way."""
    assert rig.fake.in_flight == 0
    assert indices([output]) == list(range(8))
    assert all(any(sample.loss_mask) for group in output.samples for sample in group)
    assert token_exact(rig.fake, output.samples) > 0


def test_samples_equal_those_of_one_process(rig: Rig, cluster: Any, token_exact) -> None:
    here = rig.run(0)
    there = rig.run(COUNT)
    assert {link.node for link in links()} == cluster.ids()
    assert trained(there) == trained(here)
    assert there.metrics["rollout/agl/executions"] == 8
    settled(rig, there, token_exact)


def test_records_are_whole(rig: Rig) -> None:
    output = rig.run(COUNT)
    record = rig.record()
    executions = record.executions
    assert len(executions) == 8 and len(record.workers) == COUNT and not record.flaws()
    sampled = sum(turn.output_length for execution in executions for turn in execution.ledger.turns)
    assert sampled == output.metrics["rollout/agl/sampled_tokens"]
    assert all(execution.task["prompt"] in ROWS and execution.spans for execution in executions)


def test_killed_actors_cost_no_prompt_and_train_nothing_twice(rig: Rig, token_exact) -> None:
    rig.run(COUNT)
    victims = [pid(link) for link in links()[:2]]
    rig.fake.answer_with(at_requests({5, 19}, lambda: os.kill(victims.pop(), signal.SIGKILL)))
    output = rig.run(COUNT)
    settled(rig, output, token_exact)
    assert output.metrics["rollout/agl/workers/deaths"] == 2
    assert output.metrics["rollout/agl/workers/interrupted_executions"] >= 2


@pytest.mark.parametrize("workers", [True, False], ids=["node", "raylet alone"])
def test_a_killed_node_costs_no_prompt_and_its_worker_starts_elsewhere(
    rig: Rig, cluster: Any, token_exact, workers: bool
) -> None:
    rig.run(COUNT)
    victim = next(link.node for link in links() if link.node != cluster.head)
    there = sum(link.node == victim for link in links())
    rig.fake.answer_with(at_requests({7}, lambda: cluster.kill(victim, workers=workers)))
    deaths = interrupted = 0
    while deaths < there:
        # Workers outlive their raylet by a second, in which the step may end.
        output = rig.run(COUNT)
        settled(rig, output, token_exact)
        deaths += output.metrics.get("rollout/agl/workers/deaths", 0)
        interrupted += output.metrics.get("rollout/agl/workers/interrupted_executions", 0)
    assert deaths == there and interrupted >= workers
    until(lambda: len(links()) == COUNT)
    assert victim not in {link.node for link in links()} <= cluster.ids()
    rig.fake.answer_with(echo)
    settled(rig, rig.run(COUNT), token_exact)


def test_parked_groups_come_back_also_those_of_an_actor_that_died(rig: Rig, token_exact) -> None:
    def kill_one(step: int) -> None:
        if step == 2:
            os.kill(pid(links()[0]), signal.SIGKILL)

    outputs = parked_steps(rig, COUNT, 4, kill_one, partial=0)
    assert indices(outputs) == list(range(8))
    assert [output.metrics.get("rollout/agl/resumed_groups", 0) for output in outputs] == [0, 2, 0, 2]
    assert token_exact(rig.fake, [output.samples for output in outputs]) > 0


def test_replay_data_comes_from_workers(rig: Rig) -> None:
    samples = rig.run_with_replay(COUNT)
    assert [fault for sample in samples for fault in REPLAY.faults(sample)] == []
    assert {sample.rollout_routed_experts.dtype for sample in samples} == {np.dtype(np.int32)}
