from __future__ import annotations

import re

from tests.conftest import flat


def sums(request) -> str:
    """Answer as a model that adds correctly."""
    import local

    said = local.conversation(request.text)
    at = max(at for at, (role, text) in enumerate(said) if role == "user" and text.startswith("Start"))
    return f"Total: {sum(int(re.sub(r'[^0-9]', '', text)) for role, text in said[at:] if role == 'user')}"


def test_agents_go_on_between_steps_and_every_token_is_the_engines(run_example, fake_sglang):
    rows = [{"prompt": "10 20 30", "label": "60"}, {"prompt": "5", "label": "5"}]
    output = run_example("fully_async", rows=rows, answer=sums)
    assert sorted(sample.reward for sample in flat(output.samples)) == [1.0, 1.0]
    assert output.metrics["rollout/agl/segments_per_execution"] == 1


def test_a_wrong_total_is_part_of_the_reward(run_example):
    rows = [{"prompt": "10 20 30", "label": "60"}]
    output = run_example("fully_async", rows=rows, answer=lambda request: "Total: 7")
    assert flat(output.samples)[0].reward == 0.0
