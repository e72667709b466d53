"""`generate` in evaluation, rewards from slime's options, and leftovers of a run."""

from __future__ import annotations

import gc
from typing import Any

import agentlightning as agl
import openai
import pytest
from agentlightning.adapter import TracerTraceToTriplet

from slime_agl.assemble import current
from slime_agl.errors import AgentError, ConfigError, RewardError
from slime_agl.execution import Execution
from slime_agl.host import Sample
from slime_agl.record.reading import read_run
from slime_agl.rollout import generate
from slime_agl.testing.agents import chat_agent, failing_agent
from slime_agl.testing.host import ListDataSource
from slime_agl.testing.paths import importable
from tests.conftest import flat

HERE = "tests.rollout.test_rollout_eval"


@agl.rollout
async def two_roots(task: Any, llm: Any) -> float:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="dummy", max_retries=0) as ai:
        for text in ("one", "two"):
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return 0.5


class ModeAgent(agl.LitAgent[Any]):
    """Unlike training and validation, and with the endpoint built by hand as LitAgent examples do."""

    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return self.ask(resources, rollout, 1.0)

    def validation_rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return self.ask(resources, rollout, 2.0)

    def ask(self, resources: Any, rollout: Any, reward: float) -> float:
        llm = resources["main_llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        with openai.OpenAI(base_url=url, api_key=llm.api_key) as ai:
            ai.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "x"}])
        return reward


def test_an_evaluation_runs_every_row_in_mode_val(fake_sglang, run_rollout, token_exact):
    fake_sglang.answer_with(lambda request: "ok")
    output = run_rollout(ModeAgent, ["a", "b", "c"], n_samples=2, evaluation=True)
    result = output.data["rows"]
    assert result["rewards"] == [2.0] * 6 and result["truncated"] == [False] * 6
    assert [sample.prompt for sample in result["samples"]] == ["a", "a", "b", "b", "c", "c"]
    token_exact(fake_sglang, result["samples"])


def test_an_evaluation_counts_an_execution_once_however_many_segments_it_has(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    result = run_rollout(two_roots, ["a"], evaluation=True).data["rows"]
    assert result["rewards"] == [0.5]
    assert result["samples"][0].metadata["agl"]["segments"] == 2


def test_eval_sampling_overrides_reach_the_engine(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    run_rollout(chat_agent(), ["a"], evaluation=True, eval_temperature=0.25, eval_max_response_len=7)
    params = fake_sglang.requests[0].sampling_params
    assert (params["temperature"], params["max_new_tokens"]) == (0.25, 7)


def test_an_evaluation_in_which_nothing_works_stops(run_rollout):
    with pytest.raises(AgentError, match="all 2 executions of eval dataset rows"):
        run_rollout(failing_agent(), ["a", "b"], evaluation=True)


def test_group_rm_is_refused_in_an_evaluation(run_rollout):
    with pytest.raises(ConfigError, match="--group-rm"):
        run_rollout(chat_agent(), ["a"], evaluation=True, group_rm=True)


async def length_rm(args: Any, sample: Sample, **kwargs: Any) -> float:
    return float(len(sample.response))


async def rank_rm(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    return [float(at) for at in range(len(samples))]


def final_text_reward(task: Any, execution: Execution) -> float:
    assert execution.messages[0]["content"] == task["prompt"] and execution.spans
    return float(len(execution.final_text))


def test_a_reward_model_of_slime_scores_what_the_agent_left_open(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "four")
    ((sample,),) = run_rollout(chat_agent(reward=None), ["a"], custom_rm_path=f"{HERE}.length_rm").samples
    assert sample.reward == len(sample.response)


def test_the_agents_own_reward_wins_over_a_reward_model(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "four")
    ((sample,),) = run_rollout(chat_agent(reward=0.25), ["a"], custom_rm_path=f"{HERE}.length_rm").samples
    assert sample.reward == 0.25


def test_a_group_reward_model_sees_the_whole_group(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "four")
    output = run_rollout(chat_agent(), ["a"], n_samples=3, group_rm=True, custom_rm_path=f"{HERE}.rank_rm")
    assert [sample.reward for sample in flat(output.samples)] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("group_rm", [False, True])
@pytest.mark.parametrize("own, expected", [(0.5, 0.5), (None, 4.0)])
def test_custom_rm_gives_the_agents_reward_else_asks_the_users_function(
    fake_sglang, run_rollout, group_rm: bool, own: float | None, expected: float
):
    fake_sglang.answer_with(lambda request: "four")
    output = run_rollout(
        chat_agent(reward=own),
        ["a"],
        n_samples=2,
        group_rm=group_rm,
        custom_rm_path="slime_agl.reward.custom_rm",
        agl={"reward": f"{HERE}.final_text_reward"},
    )
    assert [sample.reward for sample in flat(output.samples)] == [expected, expected]


def test_custom_rm_without_any_reward_says_what_to_do(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "four")
    with pytest.raises(RewardError, match="set agl.reward"):
        run_rollout(chat_agent(reward=None), ["a"], custom_rm_path="slime_agl.reward.custom_rm")


@agl.rollout
async def two_dimensions(task: Any, llm: Any) -> None:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as ai:
        await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    agl.emit_reward({"right": 1.0, "short": 0.5}, primary_key="right")


def test_rewards_with_dimensions_follow_the_reward_key(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "four")
    ((sample,),) = run_rollout(two_dimensions, ["a"]).samples
    assert sample.reward == 1.0
    ((sample,),) = run_rollout(two_dimensions, ["a"], reward_key="short").samples
    assert sample.reward == {"right": 1.0, "short": 0.5}
    with pytest.raises(RewardError, match="'long'.*right, short"):
        run_rollout(two_dimensions, ["a"], reward_key="long")


async def test_spans_with_tokens_hold_the_ids_of_the_samples(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "four")
    output = run_rollout(chat_agent(turns=2), ["a"], agl={"spans": "tokens"})
    ((sample,),) = output.samples
    execution = await current().finished(sample.metadata["agl"]["rollout_id"])
    triplets = TracerTraceToTriplet().adapt(list(execution.spans))
    assert [tuple(t.prompt["token_ids"]) for t in triplets] == [r.input_ids for r in fake_sglang.requests]
    assert [tuple(t.response["token_ids"]) for t in triplets] == [a.ids for a in fake_sglang.answers]
    assert triplets[-1].prompt["token_ids"] + triplets[-1].response["token_ids"] == sample.tokens


def test_what_a_step_delivered_is_released_and_memory_does_not_grow(fake_sglang, rollout_args, run_rollout):
    fake_sglang.answer_with(lambda request: "four")
    with importable(chat_agent()) as path:
        args = rollout_args(rollout_batch_size=4, n_samples_per_prompt=2, agl={"agent": path})
        source = ListDataSource(["a", "b"], 2)
        held = []
        for step in range(6):
            generate(args, step, source)
            metrics = current().run(current().metrics())
            gc.collect()
            executions = sum(type(thing) is Execution for thing in gc.get_objects())
            held.append((metrics["store/rollouts"], metrics["store/spans"], executions))
    assert held[2:] == [held[2]] * 4
    assert held[-1][0] <= 2 * 8


LABELS = {"a": [1.0, 0.0, 0.0, 0.0], "b": [0.0] * 4, "c": [1.0] * 4}


def labelled(rewards: dict[str, list[float]]) -> Any:
    """An agent whose executions of a prompt earn these rewards, in some order."""
    left = {prompt: list(values) for prompt, values in rewards.items()}

    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="dummy", max_retries=0) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": task["prompt"]}])
        return left[task["prompt"]].pop()

    return agent


def test_an_evaluation_reports_pass_and_mean_with_intervals(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    metrics = run_rollout(labelled(LABELS), ["a", "b", "c"], n_samples=4, evaluation=True).metrics
    own = {name.removeprefix("eval/agl/rows/"): value for name, value in metrics.items() if "/rows/" in name}
    names = [f"{name}{end}" for name in ("pass@1", "pass@2", "pass@4", "mean@4") for end in ("", "_low", "_high")]
    assert list(own) == names
    assert own["pass@1"] == own["mean@4"] == pytest.approx(1.25 / 3)
    assert own["pass@2"] == pytest.approx(1.5 / 3) and own["pass@4"] == pytest.approx(2 / 3)
    assert own["pass@4_low"] < own["pass@4"] < own["pass@4_high"] < 1


def test_the_reward_that_passes_can_be_set(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    agent = labelled({"a": [0.5, 0.2]})
    metrics = run_rollout(agent, ["a"], n_samples=2, evaluation=True, agl={"evaluation": {"success": 0.5}}).metrics
    assert metrics["eval/agl/rows/pass@1"] == 0.5 and metrics["eval/agl/rows/pass@2"] == 1.0


@agl.rollout
async def planner_and_coder(task: Any, llm: Any) -> None:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="dummy", max_retries=0) as ai:
        for model in ("planner", "coder"):
            messages: list[Any] = [{"role": "user", "content": f"{model}: {task['prompt']}"}]
            await ai.chat.completions.create(model=model, messages=messages)
    agl.emit_reward({"team": 0.5, "coder": 1.0}, primary_key="team")


def test_agents_of_an_execution_have_figures_of_their_own(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    metrics = run_rollout(planner_and_coder, ["a", "b"], evaluation=True, eval_reward_key="team").metrics
    own = {name.removeprefix("eval/agl/"): value for name, value in metrics.items() if name.endswith("@1")}
    assert own["rows/mean@1"] == own["rows/planner/mean@1"] == 0.5 and own["rows/coder/mean@1"] == 1.0
    assert own["rows/coder/pass@1"] == 1.0 and own["rows/planner/pass@1"] == own["rows/pass@1"] == 0.0


def updating(fake: Any, *after: int) -> Any:
    """Weights are updated after so many answers, in the middle of the evaluation."""
    count = iter(range(1, 1000))

    def answer(request: Any) -> str:
        if next(count) in after:
            fake.weight_version = str(int(fake.weight_version) + 1)
        return "ok"

    return answer


@pytest.mark.parametrize(
    "repeats, updates, expected",
    [
        (2, (), {"versions": 1, "mixed": 0, "version": 1}),
        (2, (4,), {"versions": 2, "mixed": 0, "version": 2, "repeated": 2}),
        (2, (4, 8), {"versions": 3, "mixed": 0, "version": 3, "repeated": 4}),
        (0, (4,), {"versions": 2, "mixed": 2, "version": 2}),
        (1, (4, 8), {"versions": 3, "mixed": 2, "version": 3, "repeated": 2}),
    ],
)
def test_an_evaluation_under_async_is_of_one_version_of_the_weights(
    fake_sglang, run_rollout, token_exact, tmp_path, repeats, updates, expected
):
    """Three executions of two turns, one at a time; answers from the named one on are of the next version."""
    fake_sglang.answer_with(updating(fake_sglang, *updates))
    section = {"async": {"enabled": True}, "runners": {"max_concurrency": 1}, "evaluation": {"repeats": repeats}}
    section["record_dir"] = str(tmp_path / "run")
    output = run_rollout(chat_agent(turns=2), ["a", "b", "c"], evaluation=True, agl=section)
    samples = output.data["rows"]["samples"]
    assert [sample.prompt for sample in samples] == ["a", "b", "c"]
    found = {
        name.removeprefix("eval/agl/weights/"): value for name, value in output.metrics.items() if "/weights/" in name
    }
    assert found == expected
    mixed = [sample for sample in samples if {version for version in sample.weight_versions} != {str(found["version"])}]
    assert len(mixed) == expected["mixed"]
    (record,) = read_run(tmp_path / "run")
    assert len([one for one in record.executions if one.dataset == "rows"]) == 3
    assert len(record.executions) == 3 + expected.get("repeated", 0) == output.metrics["eval/agl/executions"]
    token_exact(fake_sglang, samples)
