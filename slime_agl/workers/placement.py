"""On which node of a cluster the next worker is started."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slime_agl.config import WorkersConfig
from slime_agl.errors import ConfigError

DEATHS_BEFORE_DRAIN = 3
# CPUs of actors that have just ended are missing in Ray's answers for about 0.1 s, longer on a busy cluster.
LOOKS, LOOK_SECONDS = 20, 0.1


def connected() -> bool:
    """Return True if this process is connected to a Ray cluster. Does not import Ray: whoever is connected has it."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


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

    config: `placement` says which nodes are eligible, `num_cpus` what a worker takes. look: lists the nodes alive.
    pause: waits this many seconds before another look, where CPUs may be about to be given back.
    """

    def __init__(
        self,
        config: WorkersConfig,
        look: Callable[[], Sequence[Node]],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rule, self._resource, self._cpus, self._look = config.placement, config.resource, config.num_cpus, look
        self._pause = pause
        self._placed: Counter[str] = Counter()
        self._deaths: Counter[str] = Counter()

    def choose(self, count: int) -> list[Node]:
        """A node for each of `count` workers that start together.

        Raises:
            ConfigError: the eligible nodes have not so many CPUs free.
        """
        nodes = sorted(self._settled(count), key=lambda node: node.id)
        # One look for all: what they take shows only after they have been placed.
        free = {node.id: node.free_cpus for node in nodes if self._eligible(node)}
        chosen, placed = [], self._placed.copy()
        for _ in range(count):
            roomy = [node for node in nodes if free.get(node.id, -1.0) >= self._cpus]
            if not roomy:
                raise ConfigError(self._full(nodes, len(free), count))
            node = min(roomy, key=lambda node: placed[node.id])
            placed[node.id] += 1
            free[node.id] -= self._cpus
            chosen.append(node)
        self._placed = placed
        return chosen

    def room(self, wanted: int) -> int:
        """How many workers the eligible nodes have CPUs for, beside those that are placed; at most `wanted`."""
        return min(wanted, self._free(self._settled(wanted)))

    def moved(self, planned: str, actual: str) -> None:
        """A worker runs on another node than the chosen one, which had gone or was full."""
        self._placed[planned] -= 1
        self._placed[actual] += 1

    def died(self, node_id: str) -> None:
        """A worker has ended on this node; one on which several did gets no more."""
        self._placed[node_id] -= 1
        self._deaths[node_id] += 1

    @property
    def drained(self) -> int:
        """Nodes that get no more workers."""
        return sum(count >= DEATHS_BEFORE_DRAIN for count in self._deaths.values())

    def _settled(self, wanted: int) -> Sequence[Node]:
        """The nodes, looked at again while they would hold `wanted` workers if all their CPUs were free."""
        nodes = self._look()
        for _ in range(LOOKS):
            if (
                self._free(nodes) >= wanted
                or self._free([replace(node, free_cpus=node.cpus) for node in nodes]) < wanted
            ):
                break
            self._pause(LOOK_SECONDS)
            nodes = self._look()
        return nodes

    def _free(self, nodes: Sequence[Node]) -> int:
        """How many workers fit on the eligible ones."""
        return sum(int(node.free_cpus // self._cpus) for node in nodes if self._eligible(node))

    def _eligible(self, node: Node) -> bool:
        if self._deaths[node.id] >= DEATHS_BEFORE_DRAIN:
            return False
        if self._rule == "cpu_nodes":
            return node.gpus == 0
        return not self._resource or self._resource in node.resources

    def _full(self, nodes: Sequence[Node], eligible: int, count: int) -> str:
        seen = ", ".join(map(str, nodes)) or "none"
        if not eligible:
            return (
                f"no node is eligible for a worker under agl.workers.placement {self._rule!r}; nodes: {seen}. "
                "Set another placement"
            )
        return (
            f"{count} workers of {self._cpus:g} CPUs each (agl.workers.num_cpus) do not fit on the {eligible} eligible "
            f"nodes; nodes: {seen}. Lower agl.workers.count or num_cpus, or leave more CPUs to them: slime's trainer "
            "and engines take theirs first"
        )
