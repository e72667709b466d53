from __future__ import annotations

import re

NAMES = ["solver-1", "solver-2", "solver-3", "rewriter-1", "rewriter-2", "rewriter-3", "selector"]


def agents(output) -> list[dict[str, float]]:
    """The reward of each agent, execution by execution."""
    return [dict(zip(NAMES, (sample.reward for sample in run), strict=True)) for (run,) in output.samples]


def test_each_agent_is_a_sample_of_the_same_execution(run_example):
    output = run_example("multi_agent")
    assert agents(output) == [dict.fromkeys(NAMES, 1.0)] * 2
    for (run,) in output.samples:
        assert len({sample.rollout_id for sample in run}) == 1
        assert all(sum(sample.loss_mask) == sample.response_length for sample in run)
    assert output.metrics["rollout/agl/forks/new_conversation"] == 2 * 6


def test_credit_goes_to_the_agent_that_earned_it(run_example):
    def answer(request):
        if "`Choice: NUMBER`" in request.text:
            return "Choice: 2"
        if "proposed solutions" in request.text:
            return "Answer: 7" if re.search(r"Solution 1:\nAnswer: 8", request.text) else "Answer: 0"
        return "Answer: 8"

    row = {"prompt": "Ada has 8 marbles. How many?", "label": "8"}
    output = run_example("multi_agent", rows=[row], answer=answer)
    earned = dict.fromkeys(NAMES, 0.0) | dict.fromkeys(NAMES[:3], 1.0)
    assert agents(output) == [earned | {"selector": 0.5}]
