"""Rewards, credit and failures of executions of which only chosen conversations train."""

from __future__ import annotations

from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.errors import AgentError
from tests.conftest import flat


@agl.rollout
async def titled(task: Any, llm: Any) -> None:
    """A title, a turn of work, a reward, a judgement of it, a turn of work, a reward."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:

        async def ask(messages: list[Any], model: str) -> list[Any]:
            answer = await client.chat.completions.create(model=model, messages=messages)
            return [*messages, {"role": "assistant", "content": answer.choices[0].message.content}]

        await ask([{"role": "user", "content": "Title."}], "title")
        talk = await ask([{"role": "user", "content": "Work."}], "policy")
        agl.emit_reward(1.0)
        await ask([*talk, {"role": "user", "content": "Judge."}], "judge")
        await ask([*talk, {"role": "user", "content": "More."}], "policy")
        agl.emit_reward(2.0)


@pytest.fixture(autouse=True)
def engine(fake_sglang: Any) -> None:
    fake_sglang.answer_with(lambda request: "said")


@pytest.mark.parametrize("credit, reward", [("outcome", 2.0), ("per_turn", 3.0), ("per_agent", 2.0)])
def test_rewards_reach_the_sample_that_trains(run_rollout, token_exact, fake_sglang, credit: str, reward: float):
    output = run_rollout(titled, ["x"], agl={"credit": credit, "train": {"model": "policy"}})
    (sample,) = flat(output.samples)
    assert sample.reward == reward and sample.metadata["agl"]["segments"] == 1
    metrics = output.metrics
    assert metrics["rollout/agl/untrained_tokens/skipped_model"] > 0
    assert not [name for name in metrics if "forks/" in name]
    trained, skipped = metrics["rollout/agl/trained_tokens"], metrics["rollout/agl/untrained_tokens/skipped_model"]
    assert trained + skipped == metrics["rollout/agl/sampled_tokens"] and trained == skipped
    token_exact(fake_sglang, output.samples)


def test_an_agent_none_of_whose_turns_train_is_told_why(run_rollout):
    with pytest.raises(AgentError) as told:
        run_rollout(titled, ["x"] * 8, agl={"train": {"tools": ".+"}})
    words = str(told.value)
    assert "none of its turns trains under agl.train: skipped_tools 4" in words and "change the rules" in words
    assert "endpoint of the LLM resource" not in words


def test_a_resource_and_templates_are_found_by_the_names_that_an_agent_expects(run_rollout, tmp_path):
    (tmp_path / "critic.txt").write_text("Judge {answer}.")
    seen: dict[str, Any] = {}

    class Old(agl.LitAgent):
        async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
            llm = resources["policy_llm"]
            seen.update({name: getattr(resources[name], "template", "") for name in resources})
            text = resources["planner"].format(task=task["prompt"])
            endpoint = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
            async with openai.AsyncOpenAI(base_url=endpoint, api_key=llm.api_key, max_retries=0) as client:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
            return 1.0

    section = {
        "resource_name": "policy_llm",
        "templates": {"planner": "Plan {task}.", "critic": f"file:{tmp_path / 'critic.txt'}"},
    }
    (sample,) = flat(run_rollout(Old, ["it"], agl=section).samples)
    assert sample.reward == 1.0
    assert seen == {"policy_llm": "", "planner": "Plan {task}.", "critic": "Judge {answer}."}


@pytest.mark.parametrize(
    "section, words",
    [
        ({"templates": {"main_llm": "x"}}, "agl.templates names main_llm"),
        (
            {"templates": {"critic": "file:/nowhere/critic.txt"}},
            "agl.templates.critic: /nowhere/critic.txt cannot be read",
        ),
    ],
)
def test_templates_that_cannot_be_published_are_refused(run_rollout, section: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        run_rollout(titled, ["x"], agl=section)
