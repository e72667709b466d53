from __future__ import annotations

from tests.conftest import flat


def test_a_conversation_is_one_sample_and_its_reward_is_only_logged(run_example):
    rows = [{"prompt": "Which number is larger, 12 or 40? Answer with the number.", "label": "40"}]
    said = iter(["40", "It has more tens."])
    output = run_example("distillation", rows=rows, answer=lambda request: next(said), without=("teacher",))
    (sample,) = flat(output.samples)
    assert sample.reward == 1.0 and output.metrics["rollout/agl/turns_per_execution"] == 2
