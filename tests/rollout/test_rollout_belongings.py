"""What belongs to whom: groups, executions, rewards, training and evaluation."""

from __future__ import annotations

import itertools
import re
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.testing.agents import chat_agent
from tests.conftest import flat


@agl.rollout
async def reports_what_it_heard(task: Any, llm: Any) -> float:
    """Two conversations; the reward is the number that the first answer says."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as ai:
        asked = [{"role": "user", "content": task["prompt"]}]
        first = await ai.chat.completions.create(model="m", messages=asked)
        number = int(re.search(r"\d+", first.choices[0].message.content)[0])
        await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": f"other {number}"}])
    return float(number)


def numbered(fake: Any) -> None:
    """Let every first answer say a number of its own, and the second of the same execution repeat it."""
    numbers = itertools.count(1)

    def answer(request: Any) -> str:
        repeated = re.search(r"other (\d+)", request.text)
        return f"number {repeated[1]}." if repeated else f"number {next(numbers)}."

    fake.answer_with(answer)


def test_every_sample_has_the_reward_of_its_own_execution(fake_sglang, run_rollout, token_exact):
    """Siblings get answers of their own, so a reward that went to another of them shows."""
    numbered(fake_sglang)
    output = run_rollout(reports_what_it_heard, ["a", "b", "c"], n_samples=4)
    token_exact(fake_sglang, output.samples)
    samples = flat(output.samples)
    assert len(samples) == 24
    assert [sample.reward for sample in samples] == [float(re.search(r"\d+", s.response)[0]) for s in samples]
    assert len({sample.reward for sample in samples}) == 12


def test_samples_keep_the_group_and_the_number_of_the_sample_they_were_made_for(fake_sglang, run_rollout):
    numbered(fake_sglang)
    output = run_rollout(reports_what_it_heard, ["a", "b", "c"], n_samples=2)
    places = [(s.group_index, s.index, s.rollout_id, s.prompt) for group in output.samples for e in group for s in e]
    expected = [(0, 0, "a"), (0, 1, "a"), (1, 2, "b"), (1, 3, "b"), (2, 4, "c"), (2, 5, "c")]
    assert places == [(group, index, index, row) for group, index, row in expected for _ in range(2)]


@pytest.mark.parametrize("section", [{}, {"async": {"enabled": True, "max_staleness": 1}}])
def test_an_evaluation_leaves_training_alone(fake_sglang, steps, token_exact, tmp_path, section):
    """Between steps on one data source, evaluation takes nothing from it, puts nothing back and trains nowhere."""
    fake_sglang.answer_with(lambda request: "ok")
    rows = tmp_path / "eval.jsonl"
    rows.write_text("".join(f'{{"prompt": "eval-{n}", "label": null}}\n' for n in range(6)), encoding="utf-8")
    run = steps(
        chat_agent(),
        [f"train-{n}" for n in range(50)],
        agl=section,
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        num_rollout=3,
        eval_prompt_data=["held_out", str(rows)],
        eval_input_key="prompt",
        eval_label_key="label",
    )
    delivered: list[str] = []
    for step in range(3):
        output = run(step)
        token_exact(fake_sglang, output.samples)
        delivered += [sample.prompt for sample in flat(output.samples)]
        if not section:  # else a younger group that finishes first is delivered first
            assert set(delivered) == {f"train-{n}" for n in range(2 * step + 2)}
        assert output.metrics["rollout/agl/executions"] == 4
        held_out = run.evaluate(step).data["held_out"]["samples"]
        assert [sample.prompt for sample in held_out] == [f"eval-{n}" for n in range(6)]
    assert sorted(delivered) == [f"train-{n}" for n in range(6) for _ in range(2)]
    assert [group[0].prompt for group in run.source.taken] == [f"train-{n}" for n in range(6)]
    assert run.source.returned == []
