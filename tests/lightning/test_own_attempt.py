"""What an agent may do with its own attempt: seal it, count, wait on its clock, write a span."""

from __future__ import annotations

import asyncio

import pytest

from slime_agl.lightning import own_attempt
from tests.lightning.conftest import RecordingSession


@pytest.mark.parametrize("mode", ["auto", "thread"])
async def test_an_agent_seals_its_own_attempt_once_and_goes_on(bench, mode) -> None:
    session = RecordingSession()
    seen: list[list[str]] = []

    async def agent(task, llm):
        if mode == "auto":
            await asyncio.gather(own_attempt.seal(), own_attempt.seal())
            seen.append([event for event, *_ in session.events])
        return 1.0

    made = await bench(agent, session=session, mode=mode)
    outcome = await made.run({})
    assert outcome.final.status == "succeeded" and outcome.final.reward == 1.0
    assert [event for event, *_ in session.events] == ["open", "seal"]
    assert outcome.final.sealed == f"left by {outcome.final.attempt_id}"
    assert seen == ([["open", "seal"]] if mode == "auto" else [])


async def test_a_deadline_during_the_agents_own_sealing_seals_once(bench) -> None:
    class Slow(RecordingSession):
        async def seal(self, rollout_id, attempt_id):
            self.events.append(("begin", rollout_id, attempt_id))
            await asyncio.sleep(0.1)
            return await super().seal(rollout_id, attempt_id)

    session = Slow()

    async def agent(task, llm):
        await own_attempt.seal()
        await asyncio.get_running_loop().create_future()

    made = await bench(agent, session=session, timeout_seconds=0.02)
    outcome = await made.run({})
    assert outcome.final.status == "timeout"
    assert [event for event, *_ in session.events] == ["open", "begin", "seal"]


async def test_counts_and_spans_belong_to_their_attempt(bench) -> None:
    async def agent(task, llm):
        own_attempt.count("harness/x", task["by"])
        own_attempt.note("own.span", {"by": task["by"]})
        await own_attempt.sleep(0)
        return 1.0

    made = await bench(agent)
    outcomes = await asyncio.gather(*(made.run({"by": by}) for by in (1, 2, 3)))
    assert [dict(outcome.final.counts) for outcome in outcomes] == [{"harness/x": by} for by in (1, 2, 3)]
    spans = [[span.attributes["by"] for span in outcome.final.spans if span.name == "own.span"] for outcome in outcomes]
    assert spans == [[1], [2], [3]]


async def test_outside_an_attempt_nothing_happens() -> None:
    await own_attempt.seal()
    own_attempt.count("harness/x")
    await own_attempt.sleep(0)


async def test_a_retry_is_asked_with_the_name_of_the_error(bench) -> None:
    asked: list[str] = []

    class Asked(RecordingSession):
        def may_retry(self, sealed, status, error_type):
            asked.append(error_type)
            return False

    async def agent(task, llm):
        raise KeyError("x")

    made = await bench(agent, session=Asked(), max_attempts=2)
    await made.run({})
    assert asked == ["KeyError"]


async def test_what_agents_share_is_closed_once_with_the_service(bench) -> None:
    from slime_agl.lightning._agl import LitAgent

    closed: list[int] = []

    class Sharing(LitAgent):
        async def rollout_async(self, task, resources, rollout):
            return 1.0

        async def aclose(self):
            closed.append(1)

        def metrics(self):
            return {"sandbox/created": 3.0}

    made = await bench(Sharing())
    await made.run({})
    assert (await made.service.metrics())["sandbox/created"] == 3.0
    await made.service.close()
    assert closed == [1]
