"""On which node a worker starts."""

from __future__ import annotations

import pytest

from slime_agl.config import WorkersConfig
from slime_agl.errors import ConfigError
from slime_agl.workers.placement import Node, Placement


def node(name: str, cpus: float, free: float | None = None, **values) -> Node:
    return Node(id=name, address=f"10.0.0.{name}", cpus=cpus, free_cpus=cpus if free is None else free, **values)


def place(rule: str, *looks: list[Node], num_cpus: float = 1) -> Placement:
    """looks: the nodes at each look, the last of which goes on."""
    left = list(looks)
    return Placement(
        WorkersConfig(placement=rule, num_cpus=num_cpus),
        look=lambda: left.pop(0) if len(left) > 1 else left[0],
        pause=lambda seconds: None,
    )


def chosen(placement: Placement, count: int) -> list[str]:
    return [node.id for node in placement.choose(count)]


def test_workers_are_spread_over_the_nodes() -> None:
    nodes = [node("1", 8), node("2", 8), node("3", 8)]
    assert chosen(place("spread", nodes), 4) == ["1", "2", "3", "1"]


def test_a_full_node_is_passed_over() -> None:
    nodes = [node("1", 8, 1), node("2", 8, 8)]
    assert chosen(place("spread", nodes), 4) == ["1", "2", "2", "2"]


def test_nodes_without_gpus_can_be_asked_for() -> None:
    nodes = [node("1", 8, gpus=8), node("2", 8)]
    assert chosen(place("cpu_nodes", nodes), 2) == ["2", "2"]


def test_nodes_with_a_resource_can_be_asked_for() -> None:
    nodes = [node("1", 8), node("2", 8, resources=frozenset({"CPU", "agents"}))]
    assert chosen(place("resource:agents", nodes), 2) == ["2", "2"]


def test_what_does_not_fit_names_every_node_and_the_key() -> None:
    nodes = [node("1", 8, 1), node("2", 16, 0.5)]
    with pytest.raises(ConfigError) as caught:
        place("spread", nodes).choose(3)
    for words in ("3 workers of 1 CPUs", "10.0.0.1 (1 of 8", "10.0.0.2 (0.5 of 16", "agl.workers.num_cpus"):
        assert words in str(caught.value)


def test_no_eligible_node_names_the_rule() -> None:
    with pytest.raises(ConfigError, match="resource:agents"):
        place("resource:agents", [node("1", 8)]).choose(1)


def test_a_node_with_three_deaths_is_drained() -> None:
    placement = place("spread", [node("1", 8), node("2", 8)])
    placement.choose(2)
    for _ in range(3):
        placement.died("1")
    assert chosen(placement, 3) == ["2", "2", "2"] and placement.drained == 1


def test_a_worker_counts_where_it_runs() -> None:
    placement = place("spread", [node("1", 8), node("2", 8)])
    assert chosen(placement, 1) == ["1"]
    placement.moved("1", "2")
    assert chosen(placement, 1) == ["1"]


@pytest.mark.parametrize("rule", ["random", "resource:", ""])
def test_an_unknown_rule_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match="agl.workers.placement"):
        WorkersConfig(placement=rule)


def test_room_counts_whole_workers() -> None:
    assert place("spread", [node("1", 8, 3.5), node("2", 8, 1)], num_cpus=2).room(4) == 1


def test_cpus_that_are_about_to_be_given_back_are_waited_for() -> None:
    """Of a fleet that has just ended: its CPUs are missing from Ray's answers for a moment."""
    ended, back = [node("1", 5, 3)], [node("1", 5, 4)]
    assert chosen(place("spread", ended, ended, back), 4) == ["1"] * 4
    assert place("spread", ended, ended, back).room(4) == 4


def test_more_than_the_nodes_have_is_not_waited_for() -> None:
    placement = place("spread", [node("1", 5, 3)], [node("1", 8, 8)])
    with pytest.raises(ConfigError, match="6 workers"):
        placement.choose(6)


def test_a_choice_that_failed_takes_no_room() -> None:
    placement = place("spread", [node("1", 1), node("2", 1)], [node("1", 8), node("2", 8)])
    with pytest.raises(ConfigError):
        placement.choose(3)
    assert chosen(placement, 2) == ["1", "2"]
