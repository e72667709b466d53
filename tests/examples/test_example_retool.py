from __future__ import annotations

import pytest

from tests.conftest import flat

pytest.importorskip("langgraph", reason="the example is written with langgraph")
pytest.importorskip("langchain_openai", reason="the example is written with langchain-openai")


def test_a_program_is_run_and_its_output_answers(run_example, fake_sglang):
    output = run_example("retool")
    assert [sample.reward for sample in flat(output.samples)] == [1.0, 1.0]
    assert output.metrics["rollout/agl/segments_per_execution"] == 1
    assert len(fake_sglang.requests) == 4


def test_a_program_that_fails_shows_why_and_is_mended_in_the_same_segment(run_example, fake_sglang):
    output = run_example("retool", luck=0.6, count=1)
    assert [sample.reward for sample in flat(output.samples)] == [1.0]
    assert "NameError" in fake_sglang.requests[1].text and len(fake_sglang.requests) == 3
    assert output.metrics["rollout/agl/segments_per_execution"] == 1


def test_a_wrong_program_gives_no_reward(run_example):
    assert [sample.reward for sample in flat(run_example("retool", luck=0.9).samples)] == [0.0, 0.0]


def test_an_agent_that_programs_for_ever_is_stopped_and_still_trains(run_example):
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "pass"}}\n</tool_call>'
    output = run_example("retool", count=1, answer=lambda request: call)
    assert [sample.reward for sample in flat(output.samples)] == [0.0]
    assert "printed nothing" in flat(output.samples)[0].response
