"""Whole rollouts whose agents run in worker processes."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from slime_agl import rollout
from slime_agl.assemble import current
from slime_agl.config import Config
from slime_agl.errors import ConfigError
from slime_agl.host import RolloutArgs
from slime_agl.testing import FakeSGLang, save_tiny_checkpoint
from slime_agl.workers.arguments import portable_arguments
from slime_agl.workers.build import Site, make_fleet, of_worker
from slime_agl.workers.subprocesses import Subprocess, Subprocesses
from tests.workers.rig import AGENT, REPLAY, ROWS, Rig, at_requests, echo, indices, parked_steps, trained


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("fleet")
    with FakeSGLang() as fake:
        yield Rig(fake, save_tiny_checkpoint(directory / "checkpoint"), directory / "records")
        rollout.shutdown()


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.fake.answer_with(echo)
    return shared


def pids() -> list[int]:
    return [member.link._process.pid for member in current()._crew if isinstance(member.link, Subprocess)]


def test_samples_equal_those_of_one_process(rig: Rig, token_exact) -> None:
    here = rig.run(0)
    there = rig.run(2)
    assert len(pids()) == 2
    assert trained(there) == trained(here)
    assert token_exact(rig.fake, there.samples) > 0
    assert rig.fake.in_flight == 0
    assert there.metrics["rollout/agl/executions"] == 8


def test_an_evaluation_runs_on_workers(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": row, "label": None}) + "\n" for row in ROWS))
    dataset = {"eval_prompt_data": ["rows", str(path)], "eval_input_key": "prompt", "eval_label_key": "label"}
    output = rig.run(evaluation=True, **dataset)
    assert output.data["rows"]["rewards"] == [1.0] * 4


def test_records_are_whole(rig: Rig) -> None:
    output = rig.run()
    record = rig.record()
    executions = record.executions
    assert len(executions) == 8 and len(record.workers) == 2 and not record.flaws()
    sampled = sum(turn.output_length for execution in executions for turn in execution.ledger.turns)
    assert sampled == output.metrics["rollout/agl/sampled_tokens"]
    assert all(execution.task["prompt"] in ROWS and execution.spans for execution in executions)


def test_replay_data_comes_from_workers(rig: Rig) -> None:
    samples = rig.run_with_replay()
    assert [fault for sample in samples for fault in REPLAY.faults(sample)] == []
    assert {sample.rollout_routed_experts.dtype for sample in samples} == {np.dtype(np.int32)}


def test_workers_follow_arguments_that_change_between_steps(rig: Rig) -> None:
    first = pids()
    for path, reward in (("tests.workers.agents.pays_two", 2.0), ("tests.workers.agents.pays_three", 3.0)):
        output = rig.run(agent="tests.workers.agents.unpaid", custom_rm_path=path)
        assert {sample.reward for group in output.samples for sample in group} == {reward}
        first, last = pids(), first
    assert first == last


def test_workers_forget_what_nobody_asks_for_any_more(rig: Rig) -> None:
    for _ in range(3):
        rig.run()
    gc.collect()
    rig.run()
    fleet = cast(Any, current())
    kept = fleet.run(_kept(fleet))
    assert 0 < sum(kept) <= 8


async def _kept(fleet: Any) -> list[int]:
    """How many executions each worker keeps."""
    return [len([n for n in range(1000) if await member.link.call("finished", n)]) for member in fleet._crew]


def test_the_reward_function_of_a_group_finds_the_executions(rig: Rig) -> None:
    output = rig.run(group_rm=True, custom_rm_path="slime_agl.reward.custom_group_rm")
    assert [sample.reward for group in output.samples for sample in group] == [1.0] * 8


def test_killed_workers_cost_no_prompt_and_train_nothing_twice(rig: Rig, token_exact) -> None:
    pick = random.Random(7)
    rig.fake.answer_with(at_requests({5, 19}, lambda: os.kill(pick.choice(pids()), signal.SIGKILL)))
    output = rig.run()
    assert sorted(sample.index for group in output.samples for sample in group) == list(range(8))
    assert all(any(sample.loss_mask) for group in output.samples for sample in group)
    assert token_exact(rig.fake, output.samples) > 0
    assert output.metrics["rollout/agl/workers/deaths"] == 2
    assert output.metrics["rollout/agl/workers/interrupted_executions"] >= 2
    assert rig.fake.in_flight == 0


def test_parked_groups_come_back_and_nothing_is_under_way_between_steps(rig: Rig, token_exact) -> None:
    outputs = parked_steps(rig, 2, 4)
    assert indices(outputs) == list(range(8))
    assert [output.metrics.get("rollout/agl/resumed_groups", 0) for output in outputs] == [0, 2, 0, 2]
    assert token_exact(rig.fake, [output.samples for output in outputs]) > 0


def test_parked_groups_of_a_worker_that_dies_run_again(rig: Rig, token_exact) -> None:
    def kill_one(step: int) -> None:
        if step == 0:
            os.kill(pids()[0], signal.SIGKILL)

    outputs = parked_steps(rig, 2, 4, kill_one, partial=0)
    assert indices(outputs) == list(range(8))
    assert token_exact(rig.fake, [output.samples for output in outputs]) > 0


def test_sync_agents_run_in_threads_of_the_workers(rig: Rig, token_exact) -> None:
    output = rig.run(1, agent="tests.workers.agents.blocking")
    assert token_exact(rig.fake, output.samples) > 0


def test_an_agent_that_workers_cannot_import_is_refused_by_name(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="tests.workers.agents"):
        rig.run(1, agent="tests.workers.agents.missing")


def test_a_public_url_cannot_go_with_workers() -> None:
    section = {"agent": AGENT, "workers": {"count": 2}, "gateway": {"public_url": "http://10.0.0.1:8000"}}
    with pytest.raises(ConfigError, match="agl.gateway.public_url .*agl.workers.count is 2"):
        Config.read(section)


def test_behind_an_ingress_each_worker_has_its_own_url() -> None:
    url = "https://ingress.example/{host}/{worker}/{port}"
    config = Config.read({"agent": AGENT, "workers": {"count": 2}, "gateway": {"public_url": url, "port": 9000}})
    urls = [of_worker(config, number).gateway for number in (0, 3)]
    assert [one.port for one in urls] == [9000, 9003]
    assert [one.url(host="box", port=one.port) for one in urls] == [
        "https://ingress.example/box/0/9000",
        "https://ingress.example/box/3/9003",
    ]


def test_a_variable_that_is_not_set_is_named(rollout_args) -> None:
    config = Config.read({"agent": AGENT, "workers": {"count": 1, "env": ["NO_SUCH_KEY"]}})
    with pytest.raises(ConfigError, match="agl.workers.env names NO_SUCH_KEY"):
        make_fleet(config, RolloutArgs.read(rollout_args()), cast(Any, None))


def test_what_cannot_be_pickled_stays_behind() -> None:
    assert portable_arguments({"a": 1, "b": lambda: None}) == {"a": 1}


def test_auto_starts_what_the_executions_need_and_the_machine_has(rollout_args) -> None:
    config = Config.read(
        {"agent": AGENT, "workers": {"count": "auto", "slots": 10}, "runners": {"max_concurrency": 35}}
    )
    args = RolloutArgs.read(rollout_args())
    for room, expected in ((9, 4), (2, 2), (0, 1)):
        at = Site(transport=Subprocesses(), room=lambda wanted, room=room: min(wanted, room), died=lambda _: None)
        assert make_fleet(config, args, cast(Any, None), at=at)._count == expected
