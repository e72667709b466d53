"""Conditions of `slime-agl export --where`."""

from __future__ import annotations

from typing import Any

import pytest

from slime_agl.errors import ConfigError
from slime_agl.export.where import parse_condition

FACTS: dict[str, Any] = {
    **{"reward": 1.0, "turns": 3, "truncated": False, "failure": "", "agent": "coder", "reward.style": 0.5},
    **{"label": None, "task.level": "hard"},
}


@pytest.mark.parametrize(
    "text, holds",
    [
        ("reward>=1", True),
        ("reward > 1", False),
        ("reward >= .5 and turns < 4", True),
        ("reward >= -1e0 and turns < 3", False),
        ("turns == 4 or agent == 'coder'", True),
        ("turns == 4 or turns == 3 and reward < 1", False),
        ("(turns == 3 or turns == 4) and reward == 1", True),
        ("not truncated", True),
        ("not (truncated or failure != '')", True),
        ("not not truncated", False),
        ('task.level == "hard" and reward.style == 0.5', True),
        ("truncated == false", True),
        ("label == null", True),
        ("label != null", False),
        ("label >= 0", False),
        ("label", False),
        ("1 < 2", True),
    ],
)
def test_conditions(text: str, holds: bool):
    condition = parse_condition(text)
    condition.require(FACTS)
    assert condition.holds(FACTS) is holds


@pytest.mark.parametrize(
    "text, words",
    [
        ("rewards >= 1", "no field 'rewards'. Did you mean 'reward'?"),
        ("reward = 1", "'=' at character 8 is not understood; compare with =="),
        ("reward >= 1 and", "expected a field, a number or a quoted text at character 16, found the end"),
        ("(reward >= 1", "expected '\\)' at character 13"),
        ("reward >= 1 2", "expected 'and', 'or' or the end at character 13, found 2"),
        ("reward", "1.0 is a number, compare it with something"),
        ("reward >= 'a'", "reward is a number \\(1.0\\) and 'a' is a text"),
        ("truncated == 0", "truncated is true or false \\(False\\) and 0 is a number"),
        ("truncated < true", "< does not compare"),
        ("__import__('os')", "expected 'and', 'or' or the end"),
        ("reward.__class__ == 1", "no field 'reward.__class__'"),
        ("1a == 1", "at character 1 is not understood"),
        ("(" * 60 + "true" + ")" * 60, "nested more than 50 levels"),
        ("not " * 60 + "true", "nested more than 50 levels"),
        ("true or " * 600 + "true", "has 4804 characters"),
        ("", "expected a field"),
    ],
)
def test_mistakes_are_named(text: str, words: str):
    with pytest.raises(ConfigError, match=words):
        condition = parse_condition(text)
        condition.require(FACTS)
        condition.holds(FACTS)
