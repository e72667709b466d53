"""The outcome of a rollout and its attempts, as values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from slime_agl.credit.emitted import Emitted, Reward, last_reward
from slime_agl.errors import InvariantError

if TYPE_CHECKING:  # importing Agent Lightning costs seconds
    from slime_agl.lightning._agl import Span

Lane = Literal["train", "val"]
Status = Literal["succeeded", "failed", "timeout", "cancelled"]
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
TIMEOUT: Final = "timeout"
CANCELLED: Final = "cancelled"
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """The outcome of one attempt.

    error, error_type: formatted traceback and class name of the error, None if the attempt succeeded.
    error_code: code of the refused model call behind the error, '' if there is none.
    rewards: emitted or returned by the agent, in order. spans: ordered by sequence_id.
    counts: what the agent counted (see `own_attempt.count`).
    started, ended: seconds since the epoch. sealed: the sealed session, as the port returned it.
    """

    rollout_id: str
    attempt_id: str
    status: Status
    error: str | None
    error_type: str | None
    rewards: tuple[Emitted, ...]
    spans: tuple[Span, ...]
    started: float
    ended: float
    sealed: Any = None
    error_code: str = ""
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InvariantError(f"attempt {self.attempt_id} ended as {self.status!r}, which is none of {STATUSES}")

    @property
    def reward(self) -> Reward | None:
        """The last reward: its value, or all dimensions if it has several."""
        return last_reward(self.rewards)


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """All attempts of a rollout, oldest first; at least one."""

    rollout_id: str
    attempts: tuple[AttemptOutcome, ...]

    def __post_init__(self) -> None:
        if not self.attempts:
            raise InvariantError(f"rollout {self.rollout_id} ended without an attempt")

    @property
    def final(self) -> AttemptOutcome:
        return self.attempts[-1]
