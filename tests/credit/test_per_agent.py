"""Rewards named for one agent of several."""

from __future__ import annotations

from slime_agl.credit.emitted import Emitted
from slime_agl.credit.per_agent import agent_of, per_agent
from tests.credit.credit_helpers import execution, turns_of

# planner: turns 0 and 3; coder: 1 and 2, which do not continue each other; critic: 4
TEAM = execution((None, "planner"), (None, "coder"), (None, "coder"), (0, "planner"), (None, "critic"))
NAMES = ["coder", "coder", "planner", "critic"]


def test_the_example_of_the_documentation():
    assert [agent_of(part) for part in TEAM] == NAMES
    assert turns_of(TEAM) == [[1], [2], [0, 3], [4]]
    team = Emitted({"team": 0.5, "planner": 1.0, "coder": 0.0}, 5)
    assert per_agent([team], TEAM) == [0.0, 0.0, 1.0, 0.5]


def test_a_link_to_turns_names_their_agent():
    emitted = [Emitted({"primary": 0.25}, 5, (0, 3)), Emitted({"primary": 0.75}, 5)]
    assert per_agent(emitted, TEAM) == [0.75, 0.75, 0.25, 0.75]


def test_the_last_reward_for_an_agent_counts():
    emitted = [Emitted({"coder": 1.0}, 3), Emitted({"coder": 0.5, "team": 0.0}, 5)]
    assert per_agent(emitted, TEAM) == [0.5, 0.5, 0.0, 0.0]


def test_a_linked_reward_keeps_its_dimensions():
    both = {"right": 1.0, "short": 0.5}
    assert per_agent([Emitted(both, 5, (4,))], TEAM) == [None, None, None, both]


def test_a_link_narrows_the_agents_that_dimensions_name():
    item = Emitted({"planner": 1.0, "coder": 0.0}, 5, (0,))
    assert per_agent([item], TEAM) == [None, None, 1.0, None]


def test_without_a_reward_for_all_the_others_have_none():
    assert per_agent([Emitted({"planner": 1.0}, 5)], TEAM) == [None, None, 1.0, None]


def test_a_link_that_selects_nothing_is_no_link():
    assert per_agent([Emitted({"primary": 1.0}, 5, dangling=True)], TEAM) == [1.0] * 4


def test_a_segment_that_changes_its_model_belongs_to_the_last():
    (part,) = execution((None, "draft"), (0, "final"))
    assert agent_of(part) == "final"
