from __future__ import annotations

from tests.conftest import flat


def test_agents_go_on_between_steps_and_every_token_is_the_engines(run_example, fake_sglang):
    rows = [{"prompt": "10 20 30", "label": "60"}, {"prompt": "5", "label": "5"}]
    output = run_example("fully_async", rows=rows)
    assert sorted(sample.reward for sample in flat(output.samples)) == [1.0, 1.0]
    assert output.metrics["rollout/agl/segments_per_execution"] == 1


def test_a_wrong_total_is_part_of_the_reward(run_example):
    rows = [{"prompt": "10 20 30", "label": "60"}]
    output = run_example("fully_async", rows=rows, luck=0.9)
    assert flat(output.samples)[0].reward == 0.0
