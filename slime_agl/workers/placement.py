"""On which node of a cluster the next worker is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slime_agl.errors import ConfigError

DEATHS_BEFORE_DRAIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that is alive. resources: names of all that it offers."""

    id: str
    address: str
    cpus: float
    free_cpus: float
    gpus: float = 0.0
    resources: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.address} ({self.free_cpus:g} of {self.cpus:g} CPUs free)"


class Placement:
    """Round robin: each worker goes to the eligible node with the fewest of them that has room.

    rule: `spread` over all, `cpu_nodes` over those without GPUs, `resource:NAME` over those that offer it. look: the
    nodes that are alive now.

    Raises:
        ConfigError: the rule is unknown.
    """

    def __init__(self, rule: str, look: Callable[[], Sequence[Node]]) -> None:
        self._rule, self._look = rule, look
        self._placed: Counter[str] = Counter()
        self._deaths: Counter[str] = Counter()
        if rule not in ("spread", "cpu_nodes") and not rule.removeprefix("resource:").strip():
            raise ConfigError(_unknown(rule))
        if rule not in ("spread", "cpu_nodes") and not rule.startswith("resource:"):
            raise ConfigError(_unknown(rule))

    def choose(self, count: int, num_cpus: float) -> list[Node]:
        """A node for each of `count` workers that are started together and take `num_cpus` each.

        Raises:
            ConfigError: the eligible nodes have not so many CPUs free.
        """
        nodes = sorted(self._look(), key=lambda node: node.id)
        # One look for all: what they take shows only after they have been placed.
        free = {node.id: node.free_cpus for node in nodes if self._eligible(node)}
        chosen = []
        for _ in range(count):
            roomy = [node for node in nodes if free.get(node.id, -1.0) >= num_cpus]
            if not roomy:
                raise ConfigError(self._full(nodes, len(free), count, num_cpus))
            node = min(roomy, key=lambda node: self._placed[node.id])
            self._placed[node.id] += 1
            free[node.id] -= num_cpus
            chosen.append(node)
        return chosen

    def room(self, num_cpus: float) -> int:
        """How many workers the eligible nodes have CPUs for, beside those that are placed."""
        return sum(int(node.free_cpus // num_cpus) for node in self._look() if self._eligible(node))

    def died(self, node_id: str) -> None:
        """A worker has ended on this node; one on which several did gets no more."""
        self._placed[node_id] -= 1
        self._deaths[node_id] += 1

    @property
    def drained(self) -> int:
        """Nodes that get no more workers."""
        return sum(count >= DEATHS_BEFORE_DRAIN for count in self._deaths.values())

    def _eligible(self, node: Node) -> bool:
        if self._deaths[node.id] >= DEATHS_BEFORE_DRAIN:
            return False
        if self._rule == "cpu_nodes":
            return node.gpus == 0
        if self._rule.startswith("resource:"):
            return self._rule.removeprefix("resource:") in node.resources
        return True

    def _full(self, nodes: Sequence[Node], eligible: int, count: int, num_cpus: float) -> str:
        seen = ", ".join(map(str, nodes)) or "none"
        if not eligible:
            return (
                f"no node is eligible for a worker under agl.workers.placement {self._rule!r}; nodes: {seen}. "
                "Set another placement"
            )
        return (
            f"{count} workers of {num_cpus:g} CPUs each (agl.workers.num_cpus) do not fit on the {eligible} eligible nodes; "
            f"nodes: {seen}. Lower agl.workers.count or num_cpus, or leave more CPUs to them: slime's trainer and engines "
            "take theirs first"
        )


def _unknown(rule: str) -> str:
    return f"agl.workers.placement is {rule!r}, it must be spread, cpu_nodes or resource:NAME"
