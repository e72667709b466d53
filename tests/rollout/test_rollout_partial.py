"""--partial-rollout: what a step does not need is parked, and resumed by the next one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import agentlightning as agl
import httpx
import openai
import pytest

from slime_agl.errors import ConfigError, RewardError
from slime_agl.host import Sample
from slime_agl.rollout import shutdown
from slime_agl.testing.agents import chat_agent
from tests.conftest import flat

ANSWER = "one two three four five six"


def client(llm: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0)


async def ask(llm: Any, prompt: str) -> Any:
    async with client(llm) as ai:
        return await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}])


def meanwhile(work: Callable[[], Any]) -> threading.Thread:
    helper = threading.Thread(target=work)
    helper.start()
    return helper


@pytest.fixture
def slow_and_fast(fake_sglang, steps) -> Any:
    """A run in which step 0 needs one of two groups: 'fast' is answered, 'slow' is cut after three tokens."""

    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        if task["prompt"] != "fast":
            await fake_sglang.requests_arrived(1)
        for prompt in task["prompt"].split():
            await ask(llm, prompt)
        return 1.0

    fake_sglang.answer_with(lambda request: ANSWER).hold().abort_partial(3)

    def prepare(slow: str = "slow", **overrides: Any) -> Any:
        given = {"partial_rollout": True, "rollout_batch_size": 1, "over_sampling_batch_size": 2}
        made = steps(agent, [slow, "fast"], **{**given, **overrides})

        def answer_one() -> None:
            fake_sglang.wait_for_requests(2)
            fake_sglang.release(1)

        helper = meanwhile(answer_one)
        first = made(0)
        helper.join()
        assert [sample.prompt for sample in flat(first.samples)] == ["fast"]
        return made, first

    return prepare


def test_a_parked_turn_goes_on_in_the_next_step_token_exact(fake_sglang, slow_and_fast, token_exact):
    run, first = slow_and_fast()
    assert fake_sglang.in_flight == 0 and run.under_way == ["slow"] and run.source.returned == []
    assert first.metrics["rollout/agl/parked_groups"] == 1

    fake_sglang.weight_version = "2"
    fake_sglang.release()
    second = run(1)
    ((sample,),) = second.samples
    assert sample.prompt == "slow" and sample.response.startswith(ANSWER)
    assert sample.weight_versions == ["1", "2"] and sample.metadata["start_rollout_id"] == 0
    assert sum(sample.loss_mask) == sample.response_length == len(fake_sglang.tokenizer.encode(ANSWER)) + 1
    spans = [[0, 3, "1"], [3, sample.response_length, "2"]]
    assert sample.metadata["agl"]["weight_versions"] == spans
    assert Sample.from_dict(json.loads(json.dumps(sample.to_dict()))).metadata["agl"]["weight_versions"] == spans
    assert second.metrics["rollout/agl/resumed_groups"] == 1
    assert token_exact(fake_sglang, [*first.samples, *second.samples]) == sum(len(s.ids) for s in fake_sglang.answers)
    assert run.under_way == [] and len(fake_sglang.requests) == 3


def test_time_without_generation_is_that_of_the_step_of_delivery(fake_sglang, steps):
    """slime takes it off the time of that step, and divides by the rest."""
    fake_sglang.answer_with(lambda request: ANSWER)
    parked, slept = threading.Event(), threading.Event()

    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        if task["prompt"] == "slow":
            await asyncio.to_thread(parked.wait, 60.0)
            await asyncio.sleep(0.5)
            slept.set()
        await ask(llm, task["prompt"])
        return 1.0

    run = steps(agent, ["slow", "fast"], partial_rollout=True, rollout_batch_size=1, over_sampling_batch_size=2)
    run(0)
    parked.set()
    assert slept.wait(60.0)
    began = time.monotonic()
    ((sample,),) = run(1).samples
    assert sample.prompt == "slow" and 0.0 < sample.non_generation_time < time.monotonic() - began


def test_parked_work_is_taken_up_before_new_groups(fake_sglang, slow_and_fast):
    run, _ = slow_and_fast(over_sampling_batch_size=2)
    fake_sglang.release()
    run(1)
    assert [group[0].prompt for group in run.source.taken] == ["slow", "fast"]
    assert "start_rollout_id" not in flat(run(2).samples)[0].metadata


@pytest.mark.parametrize("version, masked", [("2", 3), ("1", 0)], ids=["updated", "not updated"])
def test_only_tokens_of_older_weights_are_masked(fake_sglang, slow_and_fast, version: str, masked: int):
    run, _ = slow_and_fast(mask_offpolicy_in_partial_rollout=True)
    fake_sglang.weight_version = version
    fake_sglang.release()
    output = run(1)
    ((sample,),) = output.samples
    assert sample.loss_mask == [0] * masked + [1] * (sample.response_length - masked)
    assert 0.0 not in sample.rollout_log_probs
    assert output.metrics.get("rollout/agl/untrained_tokens/off_policy", 0) == masked
    assert output.metrics["rollout/agl/trained_tokens"] == sample.response_length - masked
    assert output.metrics["rollout/agl/sampled_tokens"] == sample.response_length


def forgets(args: Any, sample: Any) -> None:
    sample.metadata = {}


def test_masking_goes_by_a_samples_place_and_not_by_what_hooks_left_of_its_metadata(fake_sglang, slow_and_fast):
    hooks = [f"{__name__}.forgets"]
    run, _ = slow_and_fast("slow slower", mask_offpolicy_in_partial_rollout=True, rollout_sample_hook_path=hooks)
    fake_sglang.weight_version = "2"
    fake_sglang.release()
    first, second = flat(run(1).samples)
    assert first.loss_mask == [0] * 3 + [1] * (first.response_length - 3)
    assert second.loss_mask == [1] * second.response_length


def test_masking_needs_engines_that_tell_their_version(fake_sglang, steps):
    fake_sglang.weight_version = None
    run = steps(chat_agent(), ["a"], partial_rollout=True, mask_offpolicy_in_partial_rollout=True)
    with pytest.raises(ConfigError, match="--mask-offpolicy-in-partial-rollout needs engines"):
        run(0)


def test_an_evaluation_runs_beside_parked_agents_that_hold_every_slot(fake_sglang, slow_and_fast, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"input": "question", "label": None}) + "\n")
    run, _ = slow_and_fast(sglang_server_concurrency=2, eval_prompt_data=["rows", str(rows)])
    fake_sglang.release()
    output = run.evaluate(0)
    assert [sample.prompt for sample in output.data["rows"]["samples"]] == ["question"]
    assert len(fake_sglang.requests) == 3 and run.under_way == ["slow"]
    assert [sample.prompt for sample in flat(run(1).samples)] == ["slow"]


def test_a_request_made_while_parked_waits_at_the_gateway(fake_sglang, steps, token_exact):
    parked, asked = threading.Event(), threading.Event()

    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        if task["prompt"] == "slow":
            await asyncio.to_thread(parked.wait, 30)
            asked.set()
        await ask(llm, task["prompt"])
        return 1.0

    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(agent, ["slow", "fast"], partial_rollout=True, rollout_batch_size=1, over_sampling_batch_size=2)
    first = run(0)
    parked.set()
    assert asked.wait(30)
    while run.runtime.run(run.runtime.in_flight()) == 0:
        pass  # The request is on its way to the gateway.
    assert len(fake_sglang.requests) == 1
    token_exact(fake_sglang, [*first.samples, *run(1).samples])


def test_parked_groups_of_a_run_that_ends_go_back(fake_sglang, slow_and_fast):
    run, _ = slow_and_fast()
    shutdown()
    assert [group[0].prompt for group in run.source.returned] == ["slow"]
    assert run.source.returned[0][0].metadata == {}


def broken_reward(task: Any, execution: Any) -> float:
    raise ValueError("no grader is here")


def test_parked_groups_of_a_step_that_fails_go_back(fake_sglang, steps):
    @agl.rollout
    async def agent(task: Any, llm: Any) -> float | None:
        if task["prompt"] == "slow":
            await fake_sglang.requests_arrived(1)
        await ask(llm, task["prompt"])
        return 1.0 if task["prompt"] == "fast" else None

    fake_sglang.answer_with(lambda request: ANSWER).hold()
    run = steps(
        agent,
        ["slow", "fast"],
        partial_rollout=True,
        rollout_batch_size=1,
        over_sampling_batch_size=2,
        agl={"reward": f"{__name__}.broken_reward"},
    )
    helper = meanwhile(lambda: (fake_sglang.wait_for_requests(2), fake_sglang.release(1)))
    run(0)
    helper.join()
    fake_sglang.release()
    with pytest.raises(RewardError):
        run(1)
    assert [group[0].prompt for group in run.source.returned] == ["slow"]
    assert run.under_way == [] and fake_sglang.in_flight == 0


def test_an_agent_that_outlives_its_end_is_refused_and_counted(fake_sglang, steps):
    """It blocks its thread, so it cannot be cancelled; what it asks for later gets a 409."""
    left, told, status = threading.Event(), threading.Event(), []

    @agl.rollout
    def agent(task: Any, llm: Any) -> float:
        if task["prompt"] == "stubborn":
            fake_sglang.wait_for_requests(1)
            left.wait(30)
            status.append(httpx.post(f"{llm.endpoint}/chat/completions", json={}).status_code)
            told.set()
        asyncio.run(ask(llm, task["prompt"]))
        return 1.0

    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(agent, ["stubborn", "good"], rollout_batch_size=1, over_sampling_batch_size=2)
    first = run(0)
    assert first.metrics["rollout/agl/abandoned_threads"] == 1
    assert [group[0].prompt for group in run.source.returned] == ["stubborn"]
    left.set()
    assert told.wait(30) and status == [409]


def test_what_a_cancelled_agent_had_sampled_is_counted(fake_sglang, steps):
    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        if task["prompt"] == "slow":
            await ask(llm, "first")
            await asyncio.get_running_loop().create_future()
        await fake_sglang.requests_arrived(1)
        await ask(llm, task["prompt"])
        return 1.0

    fake_sglang.answer_with(lambda request: "one two")
    run = steps(agent, ["slow", "fast"], rollout_batch_size=1, over_sampling_batch_size=2)
    metrics = run(0).metrics
    one = len(fake_sglang.answers[0].ids)
    assert metrics["rollout/agl/untrained_tokens/aborted"] == one
    assert metrics["rollout/agl/sampled_tokens"] == metrics["rollout/agl/trained_tokens"] + one


def test_a_step_without_parking_resumes_what_an_earlier_one_parked(fake_sglang, slow_and_fast):
    run, _ = slow_and_fast()
    run.args.partial_rollout = False
    fake_sglang.release()
    ((sample,),) = run(1).samples
    assert sample.prompt == "slow" and run.under_way == []
