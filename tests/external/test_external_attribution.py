"""Runners that die, come twice or report late: each turn and reward stays where it belongs, nothing trains twice."""

from __future__ import annotations

import asyncio

import pytest

from slime_agl.lightning import waiting
from tests.external.hand import Hand, ask, samples, store, wait_for_requests

QUICK = {"runners": {"lost_seconds": 1.0}}


@pytest.fixture(autouse=True)
def _frequent_census(monkeypatch):
    monkeypatch.setattr(waiting, "CENSUS_SECONDS", 0.2)


def attempts_of(sample):
    return list(ask(store().query_attempts(sample.metadata["agl"]["rollout_id"])))


def test_a_runner_that_dies_costs_its_attempt_only(fake_sglang, later, runners, token_exact):
    fake_sglang.hold()
    done = later(["a"], agl=QUICK)
    first = runners("one_turn")
    wait_for_requests(fake_sglang, 1)
    first.kill()
    runners("one_turn")
    wait_for_requests(fake_sglang, 2)
    fake_sglang.release()
    output = done.result()
    (sample,) = samples(output)
    assert sample.reward == 0.5
    assert [attempt.status for attempt in attempts_of(sample)] == ["unresponsive", "succeeded"]
    assert sample.metadata["agl"]["attempt_id"] == attempts_of(sample)[-1].attempt_id
    assert token_exact(fake_sglang, output.samples) == sum(sample.loss_mask)
    assert output.metrics["rollout/agl/lost_attempts"] == 1


def test_a_second_attempt_supersedes_the_first(fake_sglang, later, port):
    done = later(["a"])

    async def play():
        hand = Hand(port)
        first = await hand.take()
        llm = await hand.llm(first)
        assert (await hand.say(llm, "a")).status_code == 200
        second = await hand.store.start_attempt(first.rollout_id, worker_id="Worker-other")
        assert (await hand.say(await hand.llm(second), "a")).status_code == 200
        late = await hand.say(llm, "a", "b", "c")
        assert late.status_code == 409 and late.headers["x-should-retry"] == "false"
        await hand.reward(first, 0.1)
        await hand.end(first)
        await hand.reward(second, 0.9)
        await hand.end(second)
        await hand.store.close()
        return first, second

    _, second = asyncio.run(play())
    (sample,) = samples(done.result())
    assert sample.reward == 0.9
    assert sample.metadata["agl"]["attempt_id"] == second.attempt.attempt_id
    assert len(fake_sglang.answers) == 2 and sum(sample.loss_mask) == len(fake_sglang.answers[1].ids)


def test_an_attempt_is_let_in_once_the_store_has_it_and_with_its_rollouts_key(fake_sglang, later, port):
    done = later(["a", "b"], agl={"gateway": {"auth": "required"}})

    async def play():
        hand = Hand(port)
        one, other = await hand.take(), await hand.take()
        llm, foreign = await hand.llm(one), await hand.llm(other)
        assert llm.api_key != foreign.api_key
        assert (await hand.say(llm, "a", key=foreign.api_key)).status_code == 401
        assert (await hand.say(llm, "a", key="dummy")).status_code == 401
        unborn = llm.model_copy(update={"endpoint": llm.endpoint.replace(one.attempt.attempt_id, "at-unborn")})
        assert (await hand.say(unborn, "a")).status_code == 404
        unknown = llm.model_copy(update={"endpoint": llm.endpoint.replace(one.rollout_id, "ro-unknown")})
        assert (await hand.say(unknown, "a")).status_code == 404
        for taken in (one, other):
            assert (await hand.say(await hand.llm(taken), "a")).status_code == 200
            await hand.reward(taken, 1.0)
            await hand.end(taken)
        await hand.store.close()
        return llm

    llm = asyncio.run(play())
    assert [sample.reward for sample in samples(done.result())] == [1.0, 1.0]
    assert asyncio.run(Hand(port).say(llm, "a")).status_code == 409


def test_rewards_count_by_sequence_whenever_they_arrive(fake_sglang, later, port):
    done = later(["a"], agl={"credit": "per_turn"})

    async def play():
        hand = Hand(port)
        taken = await hand.take()
        llm = await hand.llm(taken)
        name = (taken.rollout_id, taken.attempt.attempt_id)
        said = await hand.say(llm, "a")
        early = await hand.store.get_next_span_sequence_id(*name)
        answer = said.json()["choices"][0]["message"]["content"]
        assert (await hand.say(llm, "a", answer, "b")).status_code == 200
        last = await hand.store.get_next_span_sequence_id(*name)
        await hand.end(taken)
        await hand.reward(taken, 0.9, last)  # behind the end of the attempt, and before the earlier one
        await hand.store.close()
        return taken, early

    taken, early = asyncio.run(play())
    (sample,) = samples(done.result())
    assert sample.reward == 0.9

    async def too_late():
        hand = Hand(port)
        await hand.reward(taken, 0.1, early)
        await hand.store.close()

    asyncio.run(too_late())
    assert sample.reward == 0.9


def test_what_a_step_does_not_need_is_cancelled_and_put_back(fake_sglang, later, step, port):
    fake_sglang.hold()
    done = later(["a", "b"], rollout_batch_size=1, over_sampling_batch_size=2)

    async def play():
        hand = Hand(port)
        one, other = await hand.take(), await hand.take()
        calls = [asyncio.ensure_future(hand.say(await hand.llm(taken), "a")) for taken in (one, other)]
        await fake_sglang.requests_arrived(2)
        fake_sglang.release(1)
        first, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        winner, loser = (one, other) if calls[0] in first else (other, one)
        await hand.reward(winner, 1.0)
        await hand.end(winner)
        refused = await (calls[1] if calls[0] in first else calls[0])
        assert refused.status_code == 409
        await hand.end(loser)  # it does not know
        await hand.store.close()
        return winner, loser

    winner, loser = asyncio.run(play())
    output = done.result()
    (sample,) = samples(output)
    assert sample.metadata["agl"]["rollout_id"] == winner.rollout_id
    assert [group[0].prompt for group in step.source.returned] == [loser.input["prompt"]]


def test_a_parked_agent_goes_on_in_the_next_step_and_its_deadline_stands_still(fake_sglang, later, port):
    fake_sglang.hold()
    fake_sglang.abort_partial(1)
    options = {"rollout_batch_size": 1, "over_sampling_batch_size": 2, "partial_rollout": True}
    done = later(["a", "b"], **options)

    async def play():
        hand = Hand(port)
        one, other = await hand.take(), await hand.take()
        calls = [asyncio.ensure_future(hand.say(await hand.llm(taken), "a")) for taken in (one, other)]
        await fake_sglang.requests_arrived(2)
        fake_sglang.release(1)
        finished, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        winner, loser = (one, other) if calls[0] in finished else (other, one)
        await hand.reward(winner, 1.0)
        await hand.end(winner)
        await asyncio.to_thread(done.result)
        parked = (await hand.store.get_rollout_by_id(loser.rollout_id)).config
        assert not any(call.done() for call in waiting)
        fake_sglang.release()
        again = later(["a", "b"], 1, **options)
        assert [(await call).status_code for call in waiting] == [200]
        resumed = (await hand.store.get_rollout_by_id(loser.rollout_id)).config
        await hand.reward(loser, 0.5)
        await hand.end(loser)
        output = await asyncio.to_thread(again.result)
        await hand.store.close()
        return loser, parked, resumed, output

    loser, parked, resumed, output = asyncio.run(play())
    assert parked.timeout_seconds is None and resumed.timeout_seconds > 60.0
    (sample,) = samples(output)
    assert sample.metadata["agl"]["rollout_id"] == loser.rollout_id and sample.reward == 0.5
