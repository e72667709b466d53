"""Whole rollouts whose agents run in worker processes."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slime_agl import rollout
from slime_agl.assemble import current
from slime_agl.errors import ConfigError
from slime_agl.record.reading import read_run
from slime_agl.workers.subprocesses import Subprocess

AGENT = "tests.workers.agents.four_turns"
ROWS = ["one", "two", "three", "four"]
TWO = {"workers": {"count": 2, "slots": 4}}


@pytest.fixture(autouse=True)
def no_fleet_is_left() -> Iterator[None]:
    yield
    rollout.shutdown()


def trained(output: Any) -> list[Any]:
    return [
        (sample.index, sample.tokens, sample.loss_mask, sample.rollout_log_probs, sample.reward)
        for group in output.samples
        for sample in group
    ]


def echo(request: Any) -> str:
    return f"answer to {len(request.input_ids)} ids"


def pids() -> list[int]:
    return [member.link._process.pid for member in current()._crew if isinstance(member.link, Subprocess)]


def at_requests(numbers: set[int], act: Callable[[], None]) -> Callable[[Any], str]:
    """A responder that calls `act` at these requests, counted from 1."""
    count = itertools.count(1)

    def respond(request: Any) -> str:
        if next(count) in numbers:
            act()
        return echo(request)

    return respond


def test_samples_equal_those_of_one_process(fake_sglang, run_rollout, token_exact) -> None:
    fake_sglang.answer_with(echo)
    here = run_rollout(AGENT, ROWS, n_samples=2)
    there = run_rollout(AGENT, ROWS, n_samples=2, agl={"workers": {"count": 3, "slots": 4}})
    assert len(pids()) == 3
    assert trained(there) == trained(here)
    assert token_exact(fake_sglang, there.samples) > 0
    assert fake_sglang.in_flight == 0
    assert there.metrics["rollout/agl/executions"] == 8


def test_killed_workers_cost_no_prompt_and_train_nothing_twice(fake_sglang, run_rollout, token_exact) -> None:
    pick = random.Random(7)
    fake_sglang.answer_with(at_requests({5, 19}, lambda: os.kill(pick.choice(pids()), signal.SIGKILL)))
    output = run_rollout(AGENT, ROWS, n_samples=2, agl=TWO)
    assert sorted(sample.index for group in output.samples for sample in group) == list(range(8))
    assert all(any(sample.loss_mask) for group in output.samples for sample in group)
    assert token_exact(fake_sglang, output.samples) > 0
    assert output.metrics["rollout/agl/workers/deaths"] == 2
    assert output.metrics["rollout/agl/workers/interrupted_executions"] >= 2
    assert fake_sglang.in_flight == 0


def test_sync_agents_run_in_threads_of_the_workers(fake_sglang, run_rollout, token_exact) -> None:
    fake_sglang.answer_with(echo)
    output = run_rollout("tests.workers.agents.blocking", ROWS, agl=TWO)
    assert token_exact(fake_sglang, output.samples) > 0


def test_an_evaluation_runs_on_workers(fake_sglang, run_rollout) -> None:
    fake_sglang.answer_with(echo)
    output = run_rollout(AGENT, ROWS, evaluation=True, agl=TWO)
    assert output.data["rows"]["rewards"] == [1.0] * 4


def test_records_are_whole(fake_sglang, run_rollout, tmp_path) -> None:
    fake_sglang.answer_with(echo)
    output = run_rollout(AGENT, ROWS, agl={**TWO, "record_dir": str(tmp_path)})
    (step,) = read_run(tmp_path)
    assert len(step.executions) == 4
    sampled = sum(turn.output_length for execution in step.executions for turn in execution.ledger.turns)
    assert sampled == output.metrics["rollout/agl/sampled_tokens"]
    assert all(execution.task["prompt"] in ROWS and execution.spans for execution in step.executions)


def test_the_reward_function_of_a_group_finds_the_executions(fake_sglang, run_rollout) -> None:
    fake_sglang.answer_with(echo)
    output = run_rollout(
        AGENT, ROWS, n_samples=2, agl=TWO, group_rm=True, custom_rm_path="slime_agl.reward.custom_group_rm"
    )
    assert [sample.reward for group in output.samples for sample in group] == [1.0] * 8


def test_an_agent_that_workers_cannot_import_is_refused_by_name(fake_sglang, run_rollout) -> None:
    with pytest.raises(ConfigError, match="tests.workers.agents"):
        run_rollout("tests.workers.agents.missing", ROWS, agl=TWO)


def test_a_public_url_cannot_go_with_workers(fake_sglang, run_rollout) -> None:
    with pytest.raises(ConfigError, match="agl.gateway.public_url .*agl.workers.count is 2"):
        run_rollout(AGENT, ROWS, agl={**TWO, "gateway": {"public_url": "http://10.0.0.1:8000"}})


def test_a_variable_that_is_not_set_is_named(fake_sglang, run_rollout) -> None:
    with pytest.raises(ConfigError, match="agl.workers.env names NO_SUCH_KEY"):
        run_rollout(AGENT, ROWS, agl={"workers": {"count": 1, "env": ["NO_SUCH_KEY"]}})
