"""Fixed numbers of concurrent executions beside `agl.runners.max_concurrency: auto`, on a model of an engine.

Simulated time, so that the figures do not depend on this machine. Each step gives the same executions to each setting:
conversations that grow by tool results, and agents that spend time at their tools between turns.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from bench import frame
from bench.cache_model import Engine, Request
from slime_agl.engine.base import Pressure
from slime_agl.pace import PERIOD_SECONDS, Law

FIXED = (8, 16, 32, 64, 128, 256, 512)
USUAL = 256  # what slime would run at a time
LONGEST = 32_768  # tokens of context
EXECUTIONS = 768


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A workload of agents, by its means.

    turns: per execution. first, added: prompt tokens of the first and of each later turn. output: sampled tokens per
    turn. tool: seconds between turns.
    """

    name: str
    turns: int
    first: int
    added: int
    output: int
    tool: float


WORKS = (
    Work(name="short turns, quick tools", turns=4, first=600, added=150, output=120, tool=0.3),
    Work(name="long contexts, tools of seconds", turns=16, first=6000, added=900, output=180, tool=4.0),
    Work(name="long contexts, tools of half a minute", turns=16, first=6000, added=900, output=180, tool=30.0),
)


class Simulation:
    """One step. limit: a fixed number, or a law."""

    def __init__(self, work: Work, limit: int | Law, executions: int, seed: int) -> None:
        self._work, self._law = work, limit if isinstance(limit, Law) else None
        self._limit = limit.limit if isinstance(limit, Law) else limit
        self._chance = random.Random(seed)
        self._engine = Engine()
        self._now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._queue = [self._plan() for _ in range(executions)]
        self._busy = self._ended = 0
        self._held = 0
        self._ended_tokens = 0
        self._last = Pressure(load=None)
        self.limits: list[tuple[float, int]] = []

    def run(self) -> dict[str, float]:
        """Run to the end; figures of the step."""
        total = len(self._queue)
        if self._law is not None:
            self._at(PERIOD_SECONDS, self._follow)
        self._begin()
        while self._ended < total:
            until = self._events[0][0] - self._now if self._events else 1.0
            if until > 0:
                self._now += self._engine.advance(until) if self._busy_engine() else until
            while self._events and self._events[0][0] <= self._now:
                heapq.heappop(self._events)[2]()
        engine = self._engine
        return {
            "seconds": self._now,
            "again": 1 - engine.reused / max(1, self._held),
            "retracted": engine.retracted,
            "limit": self._limit,
        }

    def _busy_engine(self) -> bool:
        return bool(self._engine.running or self._engine.waiting)

    def _at(self, later: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + later, next(self._order), act))

    def _plan(self) -> list[tuple[int, int, float]]:
        """Per turn: new prompt tokens, output tokens, and seconds at the tool after it."""
        chance, work = self._chance, self._work
        turns = max(1, round(chance.gauss(work.turns, work.turns / 4)))
        return [
            (
                1 + round((work.added if at else work.first) * chance.uniform(0.5, 1.5)),
                1 + round(min(chance.expovariate(1 / work.output), 8 * work.output)),
                chance.expovariate(1 / work.tool),
            )
            for at in range(turns)
        ]

    def _begin(self) -> None:
        while self._queue and self._busy < self._limit:
            self._busy += 1
            self._turn(len(self._queue), self._queue.pop(), 0, 0)

    def _turn(self, name: int, plan: list[tuple[int, int, float]], at: int, held: int) -> None:
        new, output, tool = plan[at]
        self._held += held

        def answered() -> None:
            if at + 1 < len(plan):
                self._at(tool, lambda: self._turn(name, plan, at + 1, held + new + output))
                return
            self._busy -= 1
            self._ended += 1
            self._ended_tokens += held + new + output
            self._begin()

        self._engine.send(Request(name, held + new, output, answered))

    def _follow(self) -> None:
        now = Pressure(
            load=self._engine.load,
            held=self._held,
            reused=self._engine.reused,
            ended=self._ended,
            ended_tokens=self._ended_tokens,
        )
        self._limit = self._law.update(now.since(self._last), busy=self._busy, waiting=len(self._queue))
        self._last = now
        self.limits.append((self._now, self._limit))
        self._begin()
        self._at(PERIOD_SECONDS, self._follow)


def measured(work: Work, executions: int, seed: int) -> dict[str, dict[str, float]]:
    """Figures of a step by setting."""
    settings: dict[str, int | Law] = {str(limit): limit for limit in FIXED} | {"auto": Law(USUAL, LONGEST)}
    return {name: Simulation(work, limit, executions, seed).run() for name, limit in settings.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = frame.options("concurrency", __doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    rows = [["", *(f"{limit}" for limit in FIXED), "auto", "auto ends at"]]
    for work in WORKS:
        found = measured(work, 48 if chosen.quick else EXECUTIONS, chosen.seed)
        best = min(one["seconds"] for name, one in found.items() if name != "auto")
        cells = [f"{best / one['seconds']:.2f} ({one['again']:.0%})" for one in found.values()]
        rows.append([work.name, *cells, f"{found['auto']['limit']:.0f}"])
    print((frame.markdown if chosen.markdown else frame.table)(rows))
    print(
        "executions per second, relative to the best fixed number; in brackets the share of tokens of earlier turns "
        "that the engine computed again"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
