"""Backoff between tries, and the routing key of each try."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from slime_agl.lru import LRU

REMEMBERED_SESSIONS = 65536


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between tries: `first`, then `factor` times the previous pause up to `longest`; half is jitter."""

    first: float = 0.25
    factor: float = 2.0
    longest: float = 8.0

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.longest or self.factor < 1:
            raise ValueError(f"backoff needs 0 <= first <= longest and factor >= 1, got {self}")

    def pause(self, failures: int) -> float:
        """Seconds to wait after `failures` consecutive failures (from 1)."""
        whole = min(self.longest, self.first * self.factor ** min(failures - 1, 32))
        return whole * (0.5 + 0.5 * random.random())


@dataclass(slots=True)
class RoutingKeys:
    """The routing key of each session.

    A router that pins a key to a worker keeps it pinned after the worker dies. So a session gets another key after
    `rekey_after` consecutive failures, losing its prefix cache rather than its execution. The new key may lead to the
    same worker; until it has worked once, a single failure changes it again.
    states: of sessions that have failed; while empty, every session's key is its own name.
    """

    rekey_after: int = 2
    rekeys: int = 0
    states: LRU[str, _State] = field(default_factory=lambda: LRU(REMEMBERED_SESSIONS))

    def key(self, session: str) -> str:
        state = self.states.get(session)
        return session if state is None or not state.generation else f"{session}~{state.generation}"

    def failed(self, session: str, key: str) -> None:
        """Count a failure of `key`, unless the session has another key by now."""
        if key != self.key(session):
            return
        state = self.states.used(session)
        if state is None:
            state = self.states[session] = _State()
        state.failures += 1
        if state.failures >= self.rekey_after or not state.proven:
            state.generation += 1
            state.failures = 0
            state.proven = False
            self.rekeys += 1

    def worked(self, session: str) -> None:
        state = self.states.get(session)
        if state is None:
            return
        state.failures = 0
        state.proven = True
        if not state.generation:
            del self.states[session]


@dataclass(slots=True)
class _State:
    failures: int = 0
    generation: int = 0
    proven: bool = True
