"""Rewards are read from a span as Agent Lightning itself reads them."""

from __future__ import annotations

from typing import Any

import pytest

from slime_agl.lightning._agl import Span
from slime_agl.lightning.rewards import rewards_of

from agentlightning.emitter.reward import get_rewards_from_span  # isort: skip  # after the door to it

REWARD = "agentlightning.reward"
ONE = {f"{REWARD}.0.name": "primary", f"{REWARD}.0.value": 0.5}


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"agentlightning.message": "hello"},
        ONE,
        ONE | {f"{REWARD}.1.name": "speed", f"{REWARD}.1.value": 3, "agentlightning.tag.0": "x"},
        {f"{REWARD}.0.name": "primary", f"{REWARD}.0.value": "0.25"},
        {f"{REWARD}.0.name": "primary"},
        {f"{REWARD}.0.name": "primary", f"{REWARD}.0.value": "much"},
        {f"{REWARD}.name": "primary", f"{REWARD}.value": 1.0},
        {f"{REWARD}.1.name": "primary", f"{REWARD}.1.value": 1.0},
        {REWARD: 1.0},
        {f"{REWARD}s": 1.0},
        {f"{REWARD}_model": "x"},
    ],
)
def test_rewards_are_those_that_agent_lightning_reads(attributes: dict[str, Any]) -> None:
    span = Span.from_attributes(attributes=dict(attributes), name="agentlightning.annotation")
    try:
        expected = {one.name: one.value for one in get_rewards_from_span(span)}
    except ValueError:
        with pytest.raises(ValueError):
            rewards_of([span])
        return
    assert [found.values for found in rewards_of([span])] == ([expected] if expected else [])
