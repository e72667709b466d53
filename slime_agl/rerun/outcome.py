"""The outcome of rerunning one execution, compared with its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from slime_agl.report.summary import number
from slime_agl.rerun.divergence import Divergence

Verdict = Literal["same", "diverged", "failed"]
REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One rerun execution.

    step, name: of the record. turns: number of recorded turns, in all attempts. matched: those requested again.
    attempts: (recorded, rerun). failure, recorded_failure: '' or the boundary that broke; REFUSED if the agent gave up
    on an unrecorded prompt. error: traceback of the agent or the reward function, '' if neither failed.
    rewards, recorded_rewards: one per Sample; None if unknown or impossible to rerun.
    divergence: the first one; None if the agent behaved as recorded.
    blotted: number of credentials removed from the record, by place, where a rerun needs them: it cannot be exact then.
    """

    step: str
    name: str
    turns: int
    matched: int
    attempts: tuple[int, int]
    failure: str
    recorded_failure: str
    error: str
    rewards: tuple[object, ...] | None
    recorded_rewards: tuple[object, ...] | None
    divergence: Divergence | None
    seconds: float
    blotted: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """'diverged': the prompts or the end differ from the record; 'failed': the same prompts, then a new failure."""
        if self.divergence is None and self.failure not in ("", self.recorded_failure):
            return "failed"
        differs = self.failure != self.recorded_failure or self.attempts[0] != self.attempts[1]
        return "diverged" if self.divergence is not None or differs else "same"

    @property
    def reward_changed(self) -> bool:
        if self.rewards is None or self.recorded_rewards is None:
            return False
        return self.rewards != self.recorded_rewards

    @property
    def as_recorded(self) -> bool:
        return self.verdict == "same" and not self.reward_changed

    @property
    def reward(self) -> float | None:
        return number(self.rewards[0]) if self.rewards else None

    @property
    def recorded_reward(self) -> float | None:
        return number(self.recorded_rewards[0]) if self.recorded_rewards else None

    def as_dict(self) -> dict[str, object]:
        return {
            "step": self.step,
            "name": self.name,
            "verdict": self.verdict,
            "turns": self.turns,
            "matched": self.matched,
            "recorded_attempts": self.attempts[0],
            "attempts": self.attempts[1],
            "recorded_failure": self.recorded_failure,
            "failure": self.failure,
            "recorded_rewards": self.recorded_rewards,
            "rewards": self.rewards,
            "reward_changed": self.reward_changed,
            "divergence": None if self.divergence is None else self.divergence.as_dict(),
            "blotted": dict(self.blotted),
            "error": self.error,
            "seconds": self.seconds,
        }
