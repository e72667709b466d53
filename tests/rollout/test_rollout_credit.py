"""From what an agent emits to the reward of each Sample, and on to slime's normalisation."""

from __future__ import annotations

from typing import Any

import agentlightning as agl
import openai
import pytest
from agentlightning.utils.otel import make_link_attributes

from slime_agl.errors import ConfigError, RewardError
from slime_agl.execution import Execution
from slime_agl.host import Sample
from slime_agl.reward import normalize_rewards
from slime_agl.testing.paths import importable
from tests.conftest import flat

HERE = "tests.rollout.test_rollout_credit"
FLAG = "--custom-reward-post-process-path slime_agl.reward.normalize_rewards"


def client(llm: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0)


async def say(ai: openai.AsyncOpenAI, text: str, model: str = "m") -> str:
    answer = await ai.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
    return answer.id


@agl.rollout
async def steps(task: Any, llm: Any) -> float:
    """Three conversations of one turn each; a reward after the first, one for the first after the second, one last."""
    async with client(llm) as ai:
        first = await say(ai, "one")
        agl.emit_reward(1.0)
        await say(ai, "two")
        agl.emit_reward(2.0, attributes=make_link_attributes({"gen_ai.response.id": first}))
        await say(ai, "three")
    return 4.0


@agl.rollout
async def team(task: Any, llm: Any) -> None:
    async with client(llm) as ai:
        for model in ("planner", "coder", "coder", "critic"):
            await say(ai, f"you are {model}", model)
    agl.emit_reward(0.25, attributes=make_link_attributes({"gen_ai.request.model": "critic"}))
    agl.emit_reward({"team": 0.5, "planner": 1.0, "coder": 0.0}, primary_key="team")


@agl.rollout
async def scored_steps(task: Any, llm: Any) -> None:
    async with client(llm) as ai:
        await say(ai, "one")
        agl.emit_reward({"right": 1.0, "short": 3.0}, primary_key="right")
        await say(ai, "two")
        agl.emit_reward({"right": 0.0, "short": 1.0}, primary_key="right")


@agl.rollout
async def silent(task: Any, llm: Any) -> None:
    async with client(llm) as ai:
        await say(ai, "one")
        await say(ai, "two")


@agl.rollout
async def lost_link(task: Any, llm: Any) -> None:
    async with client(llm) as ai:
        await say(ai, "one")
        await say(ai, "two")
    agl.emit_reward(1.0, attributes=make_link_attributes({"gen_ai.response.id": "chatcmpl-nobody"}))


@agl.rollout
async def forgetful(task: Any, llm: Any) -> float:
    async with client(llm) as ai:
        for number in range(9):
            await say(ai, f"question {number}")
    return 1.0


def rewards(output: Any) -> list[Any]:
    return [sample.reward for sample in flat(output.samples)]


@pytest.fixture(autouse=True)
def answers(fake_sglang: Any) -> None:
    fake_sglang.answer_with(lambda request: "ok")


@pytest.mark.parametrize(
    "credit, expected",
    [
        ("outcome", [4.0, 4.0, 4.0]),
        ("per_turn", [7.0, 4.0, 4.0]),
        ({"mode": "per_turn", "discount": 0.5}, [4.0, 2.0, 4.0]),
    ],
)
def test_credit_of_turns(run_rollout, token_exact, fake_sglang, credit: Any, expected: list[float]):
    output = run_rollout(steps, ["x"], agl={"credit": credit})
    assert rewards(output) == expected
    token_exact(fake_sglang, output.samples)


def test_credit_of_agents(run_rollout):
    assert rewards(run_rollout(team, ["x"])) == [0.5] * 4
    assert rewards(run_rollout(team, ["x"], agl={"credit": "per_agent"})) == [1.0, 0.0, 0.0, 0.25]


def test_credit_of_turns_has_every_dimension_under_a_reward_key(run_rollout):
    assert rewards(run_rollout(scored_steps, ["x"], agl={"credit": "per_turn"})) == [1.0, 0.0]
    keyed = rewards(run_rollout(scored_steps, ["x"], agl={"credit": "per_turn"}, reward_key="short"))
    assert keyed == [{"right": 1.0, "short": 4.0}, {"right": 0.0, "short": 1.0}]
    with pytest.raises(RewardError, match="'long'.*right, short"):
        run_rollout(scored_steps, ["x"], agl={"credit": "per_turn"}, reward_key="long")


def test_an_evaluation_reports_the_outcome_under_its_own_key(run_rollout):
    data = run_rollout(steps, ["x"], evaluation=True, agl={"credit": "per_turn"}).data["rows"]
    assert data["rewards"] == [4.0]
    keys = {"reward_key": "right", "eval_reward_key": "short"}
    assert run_rollout(scored_steps, ["x"], evaluation=True, **keys).data["rows"]["rewards"] == [1.0]


def ten(task: Any, execution: Execution) -> float:
    return 10.0


@pytest.mark.parametrize(
    "credit, expected", [({"mode": "per_turn", "discount": 0.5}, [5.0, 10.0]), ("outcome", [10.0] * 2)]
)
def test_the_users_reward_function_comes_after_the_last_turn(run_rollout, credit: Any, expected: list[float]):
    assert rewards(run_rollout(silent, ["x"], agl={"credit": credit, "reward": f"{HERE}.ten"})) == expected


async def place_rm(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    return [float(at) for at in range(len(samples))]


@pytest.mark.parametrize("credit", ["outcome", "per_turn", "per_agent"])
def test_what_no_agent_rewards_is_slimes_to_score(run_rollout, credit: str):
    output = run_rollout(silent, ["x"], agl={"credit": credit}, custom_rm_path=f"{HERE}.place_rm")
    assert rewards(output) == [0.0, 1.0]


def test_a_link_to_no_turn_is_counted_and_goes_by_time(run_rollout):
    output = run_rollout(lost_link, ["x"], agl={"credit": "per_turn"})
    assert rewards(output) == [1.0, 1.0]
    assert output.metrics["rollout/agl/dangling_reward_links"] == 1


def test_a_fan_out_without_our_normalisation_stops_and_names_the_flag(run_rollout, fake_sglang):
    with pytest.raises(ConfigError, match=f"gave 3 Samples.*2 new_conversation.*grpo.*{FLAG}"):
        run_rollout(steps, ["a", "b"], custom_reward_post_process_path=None)
    source = run_rollout.data_source
    assert sorted(group[0].index for group in source.returned) == sorted(group[0].index for group in source.taken)
    assert fake_sglang.in_flight == 0


@pytest.mark.parametrize("other", [{"advantage_estimator": "ppo"}, {"rewards_normalization": False}])
def test_an_estimator_that_does_not_compare_lets_executions_fan_out(run_rollout, caplog, other: dict[str, Any]):
    assert len(flat(run_rollout(steps, ["a"], custom_reward_post_process_path=None, **other).samples)) == 3
    assert FLAG not in caplog.text


def test_the_first_step_says_once_that_the_flag_is_missing(run_rollout, caplog):
    with importable(silent) as path:
        for _ in range(2):
            with pytest.raises(ConfigError, match=FLAG):
                run_rollout(path, ["a"], custom_reward_post_process_path=None, custom_rm_path=f"{HERE}.place_rm")
    said = [record for record in caplog.records if FLAG in record.getMessage()]
    assert len(said) == 1 and said[0].levelname == "WARNING"


def test_an_evaluation_needs_no_normalisation(run_rollout, caplog):
    run_rollout(steps, ["a"], evaluation=True, custom_reward_post_process_path=None)
    assert FLAG not in caplog.text


def test_an_agent_that_blows_up_into_samples_is_told_why_once(run_rollout, caplog):
    output = run_rollout(forgetful, ["a", "b"])
    said = [record.getMessage() for record in caplog.records if "gave 9 Samples from 9 turns" in record.getMessage()]
    assert len(said) == 1 and "8 new_conversation" in said[0]
    assert output.metrics["rollout/agl/samples_per_execution"] == 9
    assert output.metrics["rollout/agl/most_samples_of_an_execution"] == 9
    assert output.metrics["rollout/agl/trained_token_ratio"] == 1.0


def test_what_was_credited_is_normalised_by_group(run_rollout):
    output = run_rollout(steps, ["a", "b"], n_samples=2, agl={"credit": "per_turn"})
    samples = flat(output.samples)
    args = type("Args", (), {"advantage_estimator": "grpo", "grpo_std_normalization": False})()
    raw, normal = normalize_rewards(args, samples)
    assert raw == [7.0, 4.0, 4.0] * 4
    assert normal == [2.0, -1.0, -1.0] * 4, "each execution is worth 5, its mean over three turns of the same length"
