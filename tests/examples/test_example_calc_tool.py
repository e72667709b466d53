from __future__ import annotations

import pytest

from tests.conftest import flat


def test_a_conversation_with_the_calculator_is_one_segment(run_example, fake_sglang):
    output = run_example("calc_tool")
    assert [sample.reward for sample in flat(output.samples)] == [1.0, 1.0]
    assert len(fake_sglang.requests) == 4 and "<tool_response>" in fake_sglang.requests[-1].text
    assert output.metrics["rollout/agl/segments_per_execution"] == 1


def test_parallel_calls_come_back_in_one_turn(run_example, fake_sglang):
    rows = [{"prompt": "A cinema sells 50 tickets at 12 and 30 tickets at 5. How much does it earn?", "label": "750"}]
    output = run_example("calc_tool", luck=0.5, rows=rows)
    assert [sample.reward for sample in flat(output.samples)] == [1.0]
    first, second, third = (request.text for request in fake_sglang.requests)
    assert second.count("<tool_response>") == 2 and "600 + 150" in third


def test_a_wrong_expression_gives_no_reward(run_example):
    assert [sample.reward for sample in flat(run_example("calc_tool", luck=0.9).samples)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("expression", "says"),
    [("2 * (3 + 4) / 7", "2"), ("1 / 0", "division"), ("2 ** 9", "is not"), ("len('a')", "is not"), ("2 +", "invalid")],
)
def test_the_calculator_calculates_or_says_what_is_wrong(expression: str, says: str):
    from calc_tool.agent import use

    class Call:
        name = "calculator"
        arguments = f'{{"expression": "{expression}"}}'

    assert says in use(Call)
