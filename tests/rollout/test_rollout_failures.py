"""Failed executions are retried, masked, or trained with a negative reward."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.errors import AgentError
from slime_agl.host import Sample
from slime_agl.reward import normalize_rewards
from tests.conftest import flat

TRIES: Counter[str] = Counter()


def client(llm: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0)


@agl.rollout
async def moody(task: Any, llm: Any) -> float:
    """Call once, then follow the prompt's letter for this try: r(aise), h(ang), e(ngine error); others end well."""
    prompt = task["prompt"]
    mood = prompt[min(TRIES[prompt], len(prompt) - 1)]
    TRIES[prompt] += 1
    async with client(llm) as ai:
        await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        if mood == "r":
            raise RuntimeError("as told")
        if mood == "h":
            await asyncio.get_running_loop().create_future()
        if mood == "e":
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "refuse"}])
    return 1.0


@agl.rollout
async def shrugs(task: Any, llm: Any) -> float:
    """Ends well although the engine never answered."""
    async with client(llm) as ai:
        try:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        except openai.APIError:
            return 0.0
    return 1.0


@pytest.fixture(autouse=True)
def engine(fake_sglang: Any) -> None:
    TRIES.clear()
    fake_sglang.answer_with(lambda request: None if "refuse" in request.text else "said")


def failed(output: Any) -> list[str]:
    return [sample.metadata["agl"]["failure"] for sample in flat(output.samples)]


FAILURES = {"r": "agent_error", "h": "deadline", "e": "engine_error"}


def runners(mood: str) -> dict[str, float]:
    """A short deadline where it is what is tested."""
    return {"timeout_seconds": 2.0} if mood == "h" else {}


@pytest.mark.parametrize("mood", FAILURES)
def test_a_retry_that_ends_well_takes_the_place_of_what_failed(run_rollout, token_exact, fake_sglang, mood: str):
    policy = {"failure": {FAILURES[mood]: "retry"}, "runners": runners(mood)}
    output = run_rollout(moody, [f"{mood}w"], agl=policy)
    ((sample,),) = output.samples
    assert sample.reward == 1.0 and sample.status == Sample.Status.COMPLETED and failed(output) == [""]
    assert TRIES[f"{mood}w"] == 2
    superseded = output.metrics["rollout/agl/untrained_tokens/superseded_attempt"]
    assert superseded + output.metrics["rollout/agl/trained_tokens"] == output.metrics["rollout/agl/sampled_tokens"]
    token_exact(fake_sglang, output.samples)


@pytest.mark.parametrize("mood", FAILURES)
def test_only_the_failure_that_is_named_is_tried_again(run_rollout, mood: str):
    others = {name: "retry" for name in FAILURES.values() if name != FAILURES[mood]}
    output = run_rollout(
        moody, ["w", mood, "ww", "www"], rollout_batch_size=2, agl={"failure": others, "runners": runners(mood)}
    )
    assert failed(output) == ["", ""], "the failed group is replaced"
    assert "rollout/agl/untrained_tokens/superseded_attempt" not in output.metrics
    assert output.metrics["rollout/agl/dropped_groups/failed"] == 1


def test_retries_have_an_end_and_then_it_is_masked(run_rollout):
    with pytest.raises(AgentError, match="as told"):
        run_rollout(moody, ["r"], agl={"failure": {"agent_error": "retry", "max_attempts": 4}})
    assert TRIES["r"] == 4 * 8, "four tries in each of the eight groups after which a run in which nothing works stops"


def test_an_engine_error_that_the_agent_swallowed_is_tried_again(run_rollout, fake_sglang):
    fake_sglang.fail_next(400, "no")
    output = run_rollout(shrugs, ["x"], agl={"failure": {"engine_error": "retry"}})
    assert rewards_of(output) == [1.0] and failed(output) == [""]


def rewards_of(output: Any) -> list[Any]:
    return [sample.reward for sample in flat(output.samples)]


@pytest.mark.parametrize("mood", FAILURES)
def test_negative_trains_what_was_done_with_the_reward_that_is_set(run_rollout, token_exact, fake_sglang, mood: str):
    policy = {"failure": {FAILURES[mood]: "negative", "negative_reward": -1.0}, "runners": runners(mood)}
    output = run_rollout(moody, [mood], reward_key="right", agl=policy)
    ((sample,),) = output.samples
    assert sample.reward == {"right": -1.0} and sum(sample.loss_mask) > 0 and not sample.remove_sample
    assert failed(output) == [FAILURES[mood]]
    token_exact(fake_sglang, output.samples)


def test_a_masked_execution_is_not_in_the_baseline_of_its_group(run_rollout):
    """Of three executions one fails; the others' mean is theirs alone."""

    @agl.rollout
    async def third_fails(task: Any, llm: Any) -> float:
        async with client(llm) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        TRIES["all"] += 1
        if TRIES["all"] == 3:
            raise RuntimeError("the third")
        return float(TRIES["all"])

    output = run_rollout(third_fails, ["x"], n_samples=3, grpo_std_normalization=False)
    samples = flat(output.samples)
    args = type("Args", (), {"grpo_std_normalization": False})()
    rewards = {sample.reward: value for sample, value in zip(samples, normalize_rewards(args, samples)[1], strict=True)}
    assert rewards == {1.0: -0.5, 2.0: 0.5, 0.0: 0.0}


@agl.rollout
async def rewards_nan(task: Any, llm: Any) -> float:
    async with client(llm) as ai:
        await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    TRIES[task["prompt"]] += 1
    return float(task["prompt"]) if TRIES[task["prompt"]] == 1 else 1.0


@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_a_reward_that_is_no_finite_number_is_a_failure_of_the_agent(run_rollout, value: str):
    """One such reward in a group would make every advantage of it, and then every weight, such a number."""
    good, bad = sorted(flat(run_rollout(rewards_nan, [value], n_samples=2).samples), key=lambda s: s.remove_sample)
    assert (bad.metadata["agl"]["failure"], bad.remove_sample, bad.reward) == ("agent_error", True, 0.0)
    assert (good.metadata["agl"]["failure"], good.reward) == ("", 1.0)
    TRIES.clear()
    output = run_rollout(rewards_nan, [value], agl={"failure": {"agent_error": "retry"}})
    assert [sample.reward for sample in flat(output.samples)] == [1.0]


@agl.rollout
async def talks_without_end(task: Any, llm: Any) -> float:
    """Lets the refusal of an overlong prompt end it; emits a reward first when the task says so."""
    messages: list[Any] = [{"role": "user", "content": task["prompt"]}]
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        while True:
            answer = await ai.chat.completions.create(model="m", messages=messages)
            if "emit" in task["prompt"]:
                agl.emit_reward(0.25)
            messages += [answer.choices[0].message.model_dump(exclude_none=True)]
            messages += [{"role": "user", "content": "more " * 5}]


def halves(task: Any, execution: Any) -> float:
    return 0.5


def test_an_agent_that_the_end_of_the_context_ends_trains_as_truncated_with_what_rewards_it(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "word " * 4)
    for prompt, section, reward in (("emit", {}, 0.25), ("go", {"reward": f"{__name__}.halves"}, 0.5)):
        output = run_rollout(talks_without_end, [prompt], rollout_max_context_len=200, agl=section)
        ((sample,),) = output.samples
        assert (sample.status, sample.reward, sample.remove_sample) == (Sample.Status.TRUNCATED, reward, False)
        assert sum(sample.loss_mask) == output.metrics["rollout/agl/trained_tokens"] > 0
        assert output.metrics["rollout/agl/cut_by_context"] == 1
        assert "rollout/agl/failed/agent_error" not in output.metrics


def test_an_agent_that_the_end_of_the_context_ends_without_a_reward_has_failed(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "word " * 4)
    output = run_rollout(
        talks_without_end,
        ["go", "emit"],
        rollout_batch_size=1,
        over_sampling_batch_size=2,
        rollout_max_context_len=200,
        custom_rm_path="slime_agl.reward.custom_rm",
    )
    assert flat(output.samples)[0].prompt == "emit"


def test_an_agent_that_fails_otherwise_after_the_end_of_the_context_is_masked(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "word " * 4)

    @agl.rollout
    async def stumbles(task: Any, llm: Any) -> float:
        try:
            messages: list[Any] = [{"role": "user", "content": "x"}]
            async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
                while True:
                    answer = await ai.chat.completions.create(model="m", messages=messages)
                    messages += [answer.choices[0].message.model_dump(exclude_none=True)]
                    messages += [{"role": "user", "content": "more " * 5}]
        except openai.BadRequestError:
            pass
        agl.emit_reward(1.0)
        raise RuntimeError("a fault of its own")

    output = run_rollout(stumbles, ["bad"], n_samples=1, agl={"failure": "negative"}, rollout_max_context_len=200)
    assert output.metrics["rollout/agl/failed/agent_error"] == 1


def test_an_execution_that_gives_no_reward_is_masked_and_its_group_goes_on(run_rollout):
    @agl.rollout
    async def agent(task: Any, llm: Any) -> float | None:
        TRIES["x"] += 1
        first = TRIES["x"] == 1
        async with client(llm) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        return None if first else 1.0

    output = run_rollout(agent, ["a"], n_samples=3)
    assert sorted(failed(output)) == ["", "", "no_reward"]
    assert sorted(sample.remove_sample for sample in flat(output.samples)) == [False, False, True]
    assert output.metrics["rollout/agl/failed/no_reward"] == 1
