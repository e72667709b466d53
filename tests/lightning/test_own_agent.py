"""Every execution has its own agent; one that cannot be copied runs one execution at a time."""

from __future__ import annotations

import asyncio
import functools
import threading

import pytest

from slime_agl.errors import ConfigError
from slime_agl.lightning._agl import LitAgent


class ChartAgent(LitAgent):
    """Keeps on itself what belongs to one rollout, as Agent Lightning's chartqa example keeps endpoint and client."""

    def __init__(self, together: int = 4) -> None:
        super().__init__()
        self.together = together
        self.endpoint = ""

    async def rollout_async(self, task, resources, rollout):
        llm = resources["main_llm"]
        self.endpoint = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        await task["met"].wait()
        assert rollout.rollout_id in self.endpoint, "another execution's endpoint"


class BlockingChartAgent(ChartAgent):
    rollout_async = None  # type: ignore[assignment]

    def is_async(self) -> bool:
        return False

    def rollout(self, task, resources, rollout):
        self.endpoint = rollout.rollout_id
        task["met"].wait(timeout=30)
        assert self.endpoint == rollout.rollout_id, "another execution's endpoint"


@functools.cache
def cached():
    return ChartAgent()


class Talker:
    def __init__(self) -> None:
        self.endpoint = ""

    async def __call__(self, task, llm):
        self.endpoint = llm.endpoint
        await task["met"].wait()
        assert self.endpoint == llm.endpoint, "another execution's endpoint"


def decorated_method():
    import agentlightning as agl

    return agl.rollout(Talker().__call__)


@pytest.mark.parametrize(
    "agent",
    [ChartAgent, ChartAgent(), ChartAgent(), lambda: ChartAgent(), cached, Talker(), Talker().__call__]
    + [functools.partial(Talker().__call__), decorated_method()],
)
async def test_state_on_an_agent_belongs_to_one_execution(bench, agent) -> None:
    met = asyncio.Barrier(4)
    made = await bench(agent, max_concurrency=4)
    outcomes = await asyncio.gather(*(made.run({"met": met}, mode=mode) for mode in ("train", "val") for _ in range(2)))
    assert [outcome.final.error for outcome in outcomes] == [None] * 4


@pytest.mark.parametrize("agent", [BlockingChartAgent, BlockingChartAgent()])
async def test_state_on_a_blocking_agent_belongs_to_one_execution(bench, agent) -> None:
    met = threading.Barrier(4)
    made = await bench(agent, max_concurrency=4)
    outcomes = await asyncio.gather(*(made.run({"met": met}) for _ in range(4)))
    assert [outcome.final.error for outcome in outcomes] == [None] * 4


async def test_a_factory_is_called_for_each_slot_and_not_for_each_execution(bench) -> None:
    made_agents = []

    def factory():
        made_agents.append(ChartAgent())
        return made_agents[-1]

    made = await bench(factory, max_concurrency=3)
    for _ in range(4):
        met = asyncio.Barrier(3)
        await asyncio.gather(*(made.run({"met": met}) for _ in range(3)))
    assert len(made_agents) == 3


async def test_the_instance_that_was_named_is_not_touched(bench) -> None:
    agent, met = ChartAgent(), asyncio.Barrier(1)
    await (await bench(agent)).run({"met": met})
    assert agent.endpoint == ""


async def test_a_plain_function_is_shared_and_runs_side_by_side(bench) -> None:
    met = asyncio.Barrier(8)

    async def agent(task, llm):
        await met.wait()

    made = await bench(agent, max_concurrency=8)
    outcomes = await asyncio.gather(*(made.run({}) for _ in range(8)))
    assert {outcome.final.status for outcome in outcomes} == {"succeeded"}


class Locked(LitAgent):
    """Cannot be copied, as an agent that made its HTTP client when it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.parked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def rollout_async(self, task, resources, rollout):
        self.running += 1
        self.most = max(self.most, self.running)
        if task.get("park"):
            self.parked.set()
            await self.go_on.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        self.running -= 1


async def test_an_agent_that_cannot_be_copied_runs_one_execution_at_a_time_and_says_how_to_mend_it(
    bench, caplog
) -> None:
    agent = Locked()
    made = await bench(agent, max_concurrency=8)
    outcomes = await asyncio.gather(*(made.run({}, mode=mode) for mode in ("train", "val") for _ in range(4)))
    assert {outcome.final.status for outcome in outcomes} == {"succeeded"} and agent.most == 1
    (record,) = caplog.records
    assert "cannot pickle '_thread.lock' object" in record.getMessage() and "name its class" in record.getMessage()


async def test_an_evaluation_that_would_wait_for_a_parked_execution_is_refused(bench) -> None:
    agent = Locked()
    made = await bench(agent)
    training = asyncio.create_task(made.run({"park": True}))
    await agent.parked.wait()
    await made.service.pause("train")
    with pytest.raises(ConfigError, match="holds the only agent"):
        await made.run({}, mode="val")
    await made.service.resume("train")
    agent.go_on.set()
    await training
    assert (await made.run({}, mode="val")).final.status == "succeeded"


async def test_a_factory_that_fails_for_a_slot_fails_the_attempt_alone(bench) -> None:
    calls = []

    def factory():
        calls.append(1)
        if len(calls) == 3:
            raise OSError("no more connections")
        return ChartAgent()

    made, met = await bench(factory, max_concurrency=3), asyncio.Barrier(2)
    outcomes = await asyncio.gather(*(made.run({"met": met}) for _ in range(3)))
    assert sorted(outcome.final.status for outcome in outcomes) == ["failed", "succeeded", "succeeded"]
    (failed,) = [outcome.final for outcome in outcomes if outcome.final.status == "failed"]
    assert "OSError: no more connections" in failed.error


async def test_an_agent_that_is_left_behind_keeps_its_object_to_itself(bench) -> None:
    release, endings = threading.Event(), []

    class Slow(LitAgent):
        def rollout(self, task, resources, rollout):
            self.mine = rollout.rollout_id
            if task.get("hang"):
                release.wait(30)
                endings.append(self.mine == rollout.rollout_id)
                done.set()

    done = threading.Event()
    made = await bench(Slow, max_concurrency=1, timeout_seconds=0.02)
    assert (await made.run({"hang": True})).final.status == "timeout"
    await made.run({})
    release.set()
    await asyncio.to_thread(done.wait, 10)
    assert endings == [True]
