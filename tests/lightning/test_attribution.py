"""A span belongs to the attempt whose agent emitted it, whatever runs concurrently."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from slime_agl.errors import ConfigError
from slime_agl.lightning._agl import LitAgent, get_active_tracer
from slime_agl.lightning.service import Lightning
from slime_agl.lightning.tracer import RoutingTracer


async def test_two_hundred_async_rollouts_keep_their_own_rewards(bench) -> None:
    from agentlightning import emit_message, emit_reward

    arrived = asyncio.Barrier(200)

    async def agent(task, llm):
        emit_message(f"hello from {task['n']}")
        await arrived.wait()
        await asyncio.gather(*(asyncio.to_thread(emit_reward, float(task["n"])) for _ in range(1)))
        await arrived.wait()
        emit_reward({"score": float(task["n"]) + 0.5, "speed": 1.0}, primary_key="score")

    made = await bench(agent, max_concurrency=200)
    outcomes = await asyncio.gather(*(made.run({"n": n}) for n in range(200)))

    for n, outcome in enumerate(outcomes):
        assert outcome.final.status == "succeeded"
        assert tuple(item.values for item in outcome.final.rewards) == (
            {"primary": float(n)},
            {"score": n + 0.5, "speed": 1.0},
        )
        assert outcome.final.reward == {"score": n + 0.5, "speed": 1.0}
        assert outcome.final.spans[0].attributes["agentlightning.message.body"] == f"hello from {n}"
        assert [span.sequence_id for span in outcome.final.spans] == [1, 2, 3]


async def test_sixty_four_blocking_rollouts_run_side_by_side_with_their_own_rewards(bench) -> None:
    from agentlightning import emit_reward

    arrived = threading.Barrier(64)

    def agent(task, llm):
        arrived.wait(timeout=30)
        emit_reward(float(task["n"]))
        arrived.wait(timeout=30)
        return task["n"] + 0.25

    made = await bench(agent, max_concurrency=64)
    outcomes = await asyncio.gather(*(made.run({"n": n}) for n in range(64)))

    for n, outcome in enumerate(outcomes):
        assert tuple(item.values for item in outcome.final.rewards) == ({"primary": float(n)}, {"primary": n + 0.25}), (
            outcome.final.error
        )
        assert outcome.final.reward == n + 0.25


async def test_more_rollouts_than_slots_each_get_their_own_outcome(bench) -> None:
    running, most = 0, 0

    async def agent(task, rollout):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        assert rollout.input == task
        return float(task["n"])

    made = await bench(agent, max_concurrency=3)
    outcomes = await asyncio.gather(*(made.run({"n": n}) for n in range(40)))

    assert [outcome.final.reward for outcome in outcomes] == [float(n) for n in range(40)]
    assert most == 3


async def test_a_thread_of_the_agent_is_attributed_when_it_runs_in_the_agents_context(bench) -> None:
    from agentlightning import emit_reward

    def agent(task, llm):
        worker = threading.Thread(target=contextvars.copy_context().run, args=(emit_reward, 2.0))
        worker.start()
        worker.join()

    outcome = await (await bench(agent)).run({})
    assert outcome.final.reward == 2.0


async def test_a_span_outside_any_attempt_is_dropped_with_one_warning(bench, caplog) -> None:
    from agentlightning import emit_message, operation

    made = await bench(_quiet_agent)
    emit_message("nobody's")
    with operation(kind="nobody's") as recorded:
        pass

    assert recorded.span().attributes["kind"] == "nobody's"
    assert (await made.service.metrics())["spans_dropped"] == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "outside any attempt" in caplog.text


async def test_operations_nest_and_record_how_they_failed(bench) -> None:
    from agentlightning import emit_message, operation

    async def agent(task, llm):
        with operation(kind="outer"):
            with pytest.raises(KeyError), operation(kind="inner"):
                emit_message("deep")
                raise KeyError("lost")

    outcome = await (await bench(agent)).run({})
    message, inner, outer = outcome.final.spans
    assert (message.parent_id, inner.parent_id, outer.parent_id) == (inner.span_id, outer.span_id, None)
    assert inner.status.status_code == "ERROR" and "lost" in inner.attributes["exception.stacktrace"]
    assert outer.status.status_code == "OK"
    assert {message.trace_id, inner.trace_id, outer.trace_id} == {outer.trace_id}


async def test_agents_reach_their_tracer_while_others_come_and_go(bench) -> None:
    class Agent(LitAgent):
        async def rollout_async(self, task, resources, rollout):
            await asyncio.sleep(0)
            assert self.tracer.get_langchain_handler() is None
            assert isinstance(self.get_tracer(), RoutingTracer)
            return 1.0

    made = await bench(Agent, max_concurrency=2)
    outcomes = await asyncio.gather(*(made.run({}) for _ in range(20)))
    assert [outcome.final.error for outcome in outcomes] == [None] * 20


async def test_the_active_tracer_is_given_back_and_a_second_owner_is_refused(bench) -> None:
    made = await bench(_quiet_agent)
    other = Lightning(_quiet_agent, mode="auto", max_concurrency=1, timeout_seconds=None, max_attempts=1)
    with pytest.raises(ConfigError, match="RoutingTracer is already"):
        await other.start()
    await other.close()
    assert isinstance(get_active_tracer(), RoutingTracer)

    await made.service.close()
    await made.service.close()
    assert get_active_tracer() is None


async def _quiet_agent(task, llm):
    return 0.0
