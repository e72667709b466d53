"""A run stops if nothing ever worked or nothing works any more, but not for one bad batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slime_agl.config import FailureConfig
from slime_agl.errors import AgentError, RewardError
from slime_agl.rollout.brake import Brake


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def executions(count: int, failure: str = "agent_error", error: str = "Boom: no") -> list[Any]:
    return [SimpleNamespace(failure=failure, error=error) for _ in range(count)]


def groups_until_it_stops(brake: Brake, each: list[Any], clock: Clock, seconds: float, most: int = 500) -> int:
    for number in range(1, most + 1):
        clock.seconds += seconds
        try:
            brake.failed(each)
        except AgentError:
            return number
    return 0


@pytest.mark.parametrize("batch, samples, groups", [(1, 1, 8), (4, 1, 8), (4, 2, 4), (32, 8, 32)])
def test_a_run_in_which_nothing_ever_worked_stops_after_a_batch_and_eight_executions(batch, samples, groups) -> None:
    clock = Clock()
    brake = Brake(FailureConfig(), batch, clock)
    assert groups_until_it_stops(brake, executions(samples), clock, 0.0) == groups


def test_four_failures_in_a_step_that_has_kept_a_group_do_not_end_it() -> None:
    clock = Clock()
    brake = Brake(FailureConfig(), 4, clock)
    brake.works()
    assert groups_until_it_stops(brake, executions(1), clock, 0.0) == 0, "time has not passed"
    brake.works()
    clock.seconds += 10_000
    brake.begin()
    assert groups_until_it_stops(brake, executions(1), clock, 1000.0) == 16, "nor have enough groups"


def test_a_stall_is_counted_from_the_last_group_that_worked() -> None:
    clock = Clock()
    brake = Brake(FailureConfig(stall_groups=2, stall_seconds=100), 4, clock)
    for _ in range(20):
        brake.works()
        clock.seconds += 99
        brake.failed(executions(1))
    clock.seconds += 1
    with pytest.raises(AgentError, match=r"nothing has worked for 100 s \(agl.failure.stall_seconds\)"):
        brake.failed(executions(1))


def test_a_stall_may_be_waited_out_for_ever() -> None:
    clock = Clock()
    brake = Brake(FailureConfig(stall_seconds=None), 4, clock)
    brake.works()
    assert groups_until_it_stops(brake, executions(1), clock, 1e6) == 0


@pytest.mark.parametrize(
    "failure, advice",
    [
        ("agent_error", "mend the agent"),
        ("engine_error", "engines behind the router"),
        ("deadline", "agl.runners.timeout_seconds"),
        ("no_llm_call", "without an LLM call"),
    ],
)
def test_the_reason_names_the_boundary_at_which_most_failed(failure, advice) -> None:
    brake = Brake(FailureConfig(), 2)
    brake.failed(executions(3, failure) + executions(1, "agent_error"))
    with pytest.raises(AgentError) as told:
        brake.failed(executions(4, failure, "Boom: other"))
    message = str(told.value)
    assert "all 8 executions of the last 2 groups failed" in message and failure in message and advice in message
    assert "Boom: no" in message and "Boom: other" not in message


def test_a_run_whose_first_batch_lacks_only_rewards_is_told_so_and_one_that_has_worked_goes_on() -> None:
    lacking = executions(1, "no_reward", "rollout ro-1 has no reward")
    brake = Brake(FailureConfig(), 3, Clock())
    brake.failed(lacking)
    brake.failed(lacking)
    with pytest.raises(RewardError, match="ro-1 has no reward"):
        brake.failed(lacking)
    mixed = Brake(FailureConfig(), 3, Clock())
    for each in (lacking, executions(1), lacking, lacking):
        mixed.failed(each)
    mixed.works()
    for _ in range(9):
        mixed.failed(lacking)
