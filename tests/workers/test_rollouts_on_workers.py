"""Whole rollouts whose agents run in worker processes."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from slime_agl.errors import ConfigError
from slime_agl.rollout import shutdown

AGENT = "tests.workers.agents.four_turns"
ROWS = ["one", "two", "three", "four"]


def tokens(output: Any) -> list[Any]:
    return [
        (sample.index, sample.tokens, sample.loss_mask, sample.rollout_log_probs, sample.reward)
        for group in output.samples
        for sample in group
    ]


def test_samples_equal_those_of_one_process(fake_sglang, run_rollout, token_exact) -> None:
    fake_sglang.answer_with(lambda request: f"answer to {len(request.input_ids)} ids")
    here = run_rollout(AGENT, ROWS, n_samples=2)
    there = run_rollout(AGENT, ROWS, n_samples=2, agl={"workers": {"count": 3, "slots": 4}})
    assert tokens(there) == tokens(here)
    assert token_exact(fake_sglang, there.samples) > 0
    assert fake_sglang.in_flight == 0
    assert there.metrics["rollout/agl/executions"] == 8
    shutdown()
