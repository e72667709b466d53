"""What is left of a rollout when it ends: values, for whoever makes samples of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slime_agl.credit.emitted import Emitted, Reward, last_reward
from slime_agl.errors import InvariantError

SUCCEEDED, FAILED, TIMEOUT, CANCELLED = "succeeded", "failed", "timeout", "cancelled"
STATUSES = (SUCCEEDED, FAILED, TIMEOUT, CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """One try at a rollout.

    status: one of STATUSES. error, error_type: formatted traceback and class name of what
        ended an attempt that did not succeed, None for one that did.
    rewards: what the agent emitted or returned, in order.
    spans: the attempt's spans in the order of their sequence_id.
    started, ended: seconds since the epoch.
    sealed: what the port returned when it sealed the attempt's session.
    """

    rollout_id: str
    attempt_id: str
    status: str
    error: str | None
    error_type: str | None
    rewards: tuple[Emitted, ...]
    spans: tuple[Any, ...]
    started: float
    ended: float
    sealed: Any = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InvariantError(f"attempt {self.attempt_id} ended as {self.status!r}, which is none of {STATUSES}")

    @property
    def reward(self) -> Reward | None:
        """The last reward emitted: its value, or all its dimensions when it has several."""
        return last_reward(self.rewards)


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """All tries at a rollout, oldest first; there is at least one."""

    rollout_id: str
    attempts: tuple[AttemptOutcome, ...]

    def __post_init__(self) -> None:
        if not self.attempts:
            raise InvariantError(f"rollout {self.rollout_id} ended without an attempt")

    @property
    def final(self) -> AttemptOutcome:
        return self.attempts[-1]
