"""Events that agents of Agent Lightning 1.x post to their attempt."""

from __future__ import annotations

import openai
import pytest


async def post(client: openai.AsyncOpenAI, body: object) -> dict:
    return await client.post("/events", body=body, cast_to=object)  # type: ignore[return-value]


async def test_a_reward_is_reported_with_its_attempt_and_echoed_with_its_time(make_bench):
    bench = make_bench()
    client = await bench.open(events=True)
    event = await post(client, {"event_type": "reward", "data": {"value": 1, "reason": "solved"}})
    assert bench.notes.rewards == [("ro-1", "at-1", 1.0)]
    assert (event["event_type"], event["rollout_id"], event["attempt_id"]) == ("reward", "ro-1", "at-1")
    assert event["data"] == {"value": 1, "reason": "solved"} and event["timestamp"] > 1e9


async def test_other_events_are_accepted_and_only_counted(make_bench):
    bench = make_bench()
    client = await bench.open(events=True)
    await post(client, {"event_type": "agent_output", "data": {"patch": "..."}})
    assert bench.notes.rewards == []
    assert (await bench.seal()).counters["posted_events"] == 1


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"data": {"value": 1}},
        {"event_type": 3, "data": {}},
        {"event_type": "reward", "data": {"value": True}},
        {"event_type": "reward", "data": {"value": "1"}},
        {"event_type": "reward", "data": {}},
        {"event_type": "reward", "data": 1},
    ],
)
async def test_a_malformed_event_is_refused(make_bench, body):
    bench = make_bench()
    client = await bench.open(events=True)
    with pytest.raises(openai.BadRequestError):
        await post(client, body)
    assert bench.notes.rewards == []


async def test_an_attempt_whose_reward_is_not_the_agents_takes_none(make_bench):
    bench = make_bench()
    client = await bench.open()
    with pytest.raises(openai.PermissionDeniedError, match=r"agl\.agent\.reward"):
        await post(client, {"event_type": "reward", "data": {"value": 1}})
    assert bench.notes.rewards == []


async def test_another_attempts_key_and_a_late_event_are_refused(make_bench):
    bench = make_bench()
    client, other = await bench.open("at-1", events=True), await bench.open("at-2", events=True)
    body = {"event_type": "reward", "data": {"value": 1}}
    with pytest.raises(openai.AuthenticationError):
        await post(bench.client("at-1", key=bench.keys["at-2"]), body)
    await bench.seal("at-1")
    with pytest.raises(openai.ConflictError):
        await post(client, body)
    await post(other, body)
    assert bench.notes.rewards == [("ro-1", "at-2", 1.0)]
