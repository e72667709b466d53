"""`slime_agl.generate.generate`, called as slime's loops call it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.errors import ConfigError
from slime_agl.generate import generate
from slime_agl.host import RolloutArgs, Sample
from slime_agl.record.reading import read_record
from slime_agl.rollout import generate as evaluate
from slime_agl.rollout import shutdown
from slime_agl.testing.agents import chat_agent, failing_agent
from slime_agl.testing.paths import importable

Run = Callable[..., Any]


@agl.rollout
async def branching(task: Any, llm: Any) -> float:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        for letter in task["prompt"]:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": letter}])
    return 0.5


@pytest.fixture
def run(rollout_args: Callable[..., Any]) -> Iterator[Run]:
    """A coroutine function: one execution of an agent on a prompt."""
    with ExitStack() as stack:
        stack.callback(shutdown)

        async def call(agent: Any, prompt: str = "go", *, section: Any = (), evaluation: bool = False, **flags: Any):
            args = rollout_args(agl={"agent": stack.enter_context(importable(agent)), **dict(section)}, **flags)
            sample = Sample(index=7, group_index=3, prompt=prompt, session_id="seven")
            return await generate(args, sample, RolloutArgs.read(args).sampling_params(0), evaluation=evaluation)

        yield call


async def test_one_execution_is_one_token_exact_sample(fake_sglang, run: Run, token_exact):
    fake_sglang.say("one").say("two")
    sample = await run(chat_agent(turns=2))
    assert (sample.index, sample.group_index, sample.rollout_id, sample.session_id) == (7, 3, 7, "seven")
    assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0)
    assert token_exact(fake_sglang, [sample]) == sum(len(sent.ids) for sent in fake_sglang.answers)


async def test_slimes_sampling_is_what_the_engine_gets(fake_sglang, run: Run):
    fake_sglang.answer_with(lambda request: "ok")
    flags = {"sglang_enable_deterministic_inference": True, "rollout_seed": 5, "rollout_temperature": 0.25}
    await run(chat_agent(), **flags, rollout_max_response_len=9)
    sent = fake_sglang.requests[0].sampling_params
    assert (sent["temperature"], sent["sampling_seed"], sent["max_new_tokens"]) == (0.25, 5, 9)


async def test_slime_gives_the_reward_when_nobody_else_does(fake_sglang, run: Run):
    fake_sglang.answer_with(lambda request: "ok")
    assert (await run(chat_agent(reward=None))).reward is None


async def test_hooks_are_left_to_slimes_loop(fake_sglang, run: Run):
    fake_sglang.answer_with(lambda request: "ok")
    sample = await run(chat_agent(), rollout_sample_hook_path=["nowhere.to_be.found"])
    assert sample.reward == 1.0


async def test_an_agent_that_fails_is_a_masked_sample(fake_sglang, run: Run):
    fake_sglang.answer_with(lambda request: "ok")
    sample = await run(failing_agent())
    assert (sample.status, sample.remove_sample, sum(sample.loss_mask)) == (Sample.Status.FAILED, True, 0)


async def test_several_samples_are_refused_unless_lists_were_promised(fake_sglang, run: Run, token_exact):
    fake_sglang.answer_with(lambda request: "ok")
    with pytest.raises(ConfigError, match="2 Samples .*agl.generate_returns: list"):
        await run(branching, "ab")
    lists = {"generate_returns": "list"}
    one, two = await run(branching, "a", section=lists), await run(branching, "ab", section=lists)
    assert [len(one), len(two)] == [1, 2]
    assert {sample.rollout_id for sample in two} == {7}
    fake_sglang.answers[:2] = []
    token_exact(fake_sglang, [one, two])


async def test_an_evaluation_is_one_sample_of_the_agent_in_mode_val(fake_sglang, run: Run):
    modes = []

    @agl.rollout
    async def noting(task: Any, llm: Any, rollout: Any) -> float:
        modes.append(rollout.mode)
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            for word in ("one", "two"):
                await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": word}])
        return 1.0

    fake_sglang.answer_with(lambda request: "ok")
    sample = await run(noting, evaluation=True)
    assert isinstance(sample, Sample) and sample.reward == 1.0
    assert modes == ["val"]


async def test_executions_of_a_step_share_its_record(fake_sglang, run: Run, tmp_path: Path):
    fake_sglang.answer_with(lambda request: "ok")
    section = {"record_dir": str(tmp_path)}
    for evaluation in (False, False, True):
        await run("slime_agl.testing.agents.chat_agent", section=section, evaluation=evaluation)
    shutdown()
    records = {path.name.partition("-")[0]: read_record(path) for path in tmp_path.iterdir()}
    assert {name: len(record.executions) for name, record in records.items()} == {"step": 2, "eval": 1}


async def test_our_own_evaluation_may_come_in_between(fake_sglang, run: Run, rollout_args, tmp_path: Path):
    """With --eval-function-path slime_agl.rollout.generate beside slime's fully-async loop, which goes on meanwhile."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "x", "label": null}\n')
    fake_sglang.answer_with(lambda request: "ok")
    agent = "slime_agl.testing.agents.chat_agent"
    evaluation = rollout_args(agl={"agent": agent}, eval_prompt_data=["rows", str(rows)], label_key="label")
    assert (await run(agent)).reward == 1.0
    for step in (0, 1):
        await asyncio.to_thread(evaluate, evaluation, step, None, evaluation=True)
        assert (await run(agent)).reward == 1.0
