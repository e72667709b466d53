"""The fixtures and the scripted agents, on the whole path from `generate` to Samples."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from slime_agl.errors import AgentError
from slime_agl.testing import chat_agent, failing_agent, sync_agent, tool_agent


def flat(output) -> list:
    return [sample for group in output.samples for sample in group]


@pytest.mark.parametrize("make", [chat_agent, sync_agent])
def test_a_chat_of_two_turns_becomes_one_sample_per_execution(fake_sglang, run_rollout, token_exact, make):
    fake_sglang.answer_with(lambda request: "hello")
    output = run_rollout(make(turns=2, reward=0.5), ["one", "two"], n_samples=2)
    assert [[sample.reward for sample in group] for group in output.samples] == [[0.5, 0.5], [0.5, 0.5]]
    assert len(fake_sglang.requests) == 8
    assert token_exact(fake_sglang, output.samples) == sum(len(sent.ids) for sent in fake_sglang.answers)
    assert len(run_rollout.data_source.taken) == 2


def test_a_tool_agent_runs_parallel_calls_and_is_told_of_faults(fake_sglang, run_rollout, token_exact):
    fake_sglang.call_tools(("add", {"a": 1, "b": 2}), ("add", {"a": 1}), ("sub", {}), text="let me see").say("3")
    output = run_rollout(tool_agent(), ["1 + 2?"])
    shown = fake_sglang.requests[1].text
    assert "<tool_response>\n3\n</tool_response>" in shown
    assert "TypeError" in shown and "KeyError" in shown
    assert len(flat(output)) == 1
    token_exact(fake_sglang, output.samples)


def test_a_failing_agent_stops_the_step_with_its_own_words(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "hello")
    with pytest.raises(AgentError, match="no luck today"):
        run_rollout(failing_agent("no luck today", after_turns=1), ["one"])
    assert fake_sglang.requests


def test_rows_can_be_an_eval_dataset(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "hello")
    rows = ["one", {"prompt": "two", "label": "2"}]
    output = run_rollout(chat_agent(reward=0.25), rows, n_samples=2, evaluation=True)
    assert output.data["rows"]["rewards"] == [0.25] * 4


async def test_a_rollout_can_be_run_from_a_coroutine(fake_sglang, run_rollout):
    fake_sglang.hold().say("hello")
    step = asyncio.create_task(asyncio.to_thread(run_rollout, chat_agent(), ["one"]))
    await fake_sglang.requests_arrived(1)
    fake_sglang.release()
    assert flat(await step)[0].response == "hello<|im_end|>"


def test_settings_and_arguments_reach_the_rollout(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "a long answer")
    output = run_rollout(chat_agent(), ["one"], agl={"model": "my-model"}, rollout_max_response_len=3)
    assert flat(output)[0].response_length == 3
    assert fake_sglang.requests[0].sampling_params["max_new_tokens"] == 3


def test_the_plugin_costs_nothing_until_a_fixture_is_used():
    heavy = ("torch", "transformers", "tokenizers", "agentlightning", "aiohttp", "openai")
    code = f"import sys, slime_agl.testing.plugin; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
