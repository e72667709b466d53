"""What is run, what came of it, and the desk where attempts open and leave their sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slime_agl.config import FailureConfig
from slime_agl.credit.emitted import Emitted, Reward
from slime_agl.gateway.http.server import Gateway
from slime_agl.gateway.sessions.session import SealedSession, SessionSpec
from slime_agl.record.run import Try
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import Account, Segment, account, segments

Failure = Literal["", "agent_error", "engine_error", "deadline", "no_llm_call", "no_reward"]


def nothing() -> None:
    """For whoever need not be told."""


@dataclass(frozen=True, slots=True)
class Job:
    """One execution to be: the agent's task, and what its turns may do and must bring (see SessionSpec).

    began: called whenever an attempt gets its place, before its agent runs.
    """

    task: Any
    mode: Literal["train", "val"]
    session_key: str
    sampling: Mapping[str, Any]
    response_limit: int | None
    context_limit: int | None = None
    experts_width: int | None = None
    began: Callable[[], None] = nothing


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Execution:
    """A finished run of the agent, as reward functions get it.

    task: what the agent was given. reward: what the agent returned or last emitted (a dict with the
    primary value first when it has several dimensions), None when it gave none.
    emitted: every reward that the agent gave, in order, and the turns that each belongs to.
    final_text: text of the last turn; messages: the conversation the last turn was shown.
    spans: Agent Lightning's spans in order. error: the agent's traceback when it failed.
    failure: '' or the boundary that broke. segments: the token sequences that may train.
    seconds: wall time; engine_seconds: the part of it spent waiting for the engine, held turns
    included, summed over turns.
    engine_errors: messages of engine failures that the agent was told of. earlier: the tries before this one.
    """

    rollout_id: str
    attempt_id: str
    task: Any
    reward: Reward | None
    final_text: str
    messages: list[dict[str, Any]]
    spans: tuple[Any, ...]
    failure: Failure
    error: str
    ledger: Ledger
    segments: tuple[Segment, ...]
    account: Account
    counters: Counter[str]
    seconds: float
    superseded: Counter[str] = field(default_factory=Counter)
    emitted: tuple[Emitted, ...] = ()
    engine_errors: tuple[str, ...] = ()
    earlier: tuple[Try, ...] = ()

    @property
    def engine_seconds(self) -> float:
        return sum(turn.engine_seconds for turn in self.ledger.turns)


class SessionDesk:
    """Joins runners and gateway: opens an attempt's session before its agent runs, seals it after."""

    def __init__(self, gateway: Gateway, failure: FailureConfig) -> None:
        self._gateway, self._policies = gateway, failure
        self._jobs: dict[str, Job] = {}
        self._sealed: dict[str, list[SealedSession]] = {}

    def expect(self, rollout_id: str, job: Job) -> None:
        """Attempts of this rollout will come, and may do what the job says."""
        self._jobs[rollout_id] = job

    async def open(self, rollout_id: str, attempt_id: str) -> str:
        job = self._jobs[rollout_id]
        job.began()
        spec = SessionSpec(
            rollout_id, attempt_id, job.session_key, job.sampling, job.response_limit, job.context_limit,
            job.experts_width, lane=job.mode,
        )  # fmt: skip
        return await self._gateway.open(spec)

    async def seal(self, rollout_id: str, attempt_id: str) -> None:
        self._sealed.setdefault(rollout_id, []).append(await self._gateway.seal(rollout_id, attempt_id))

    def may_retry(self, rollout_id: str, attempt_id: str, status: str) -> bool:
        """Whether the policy for the way in which the attempt failed, if it did, is to try again."""
        last = self._sealed[rollout_id][-1]
        failure = failure_of(status, bool(segments(last.ledger)), last.engine_errors)
        return self._policies.policy(failure) == "retry"

    def take(self, rollout_id: str) -> list[SealedSession]:
        """The sealed sessions of a rollout, one an attempt, in order. No more attempts are expected."""
        self._jobs.pop(rollout_id, None)
        return self._sealed.pop(rollout_id, [])


def finish(job: Job, outcome: Any, sealed: list[SealedSession]) -> Execution:
    """Turn what runners and gateway know of an execution into one value."""
    final = outcome.final
    refuse_broken(sealed)
    last = sealed[-1]
    parts = segments(last.ledger)
    superseded: Counter[str] = Counter()
    for session in sealed[:-1]:
        superseded["superseded_attempt"] += sum(turn.output_length for turn in session.ledger.turns)
    return Execution(
        rollout_id=outcome.rollout_id,
        attempt_id=final.attempt_id,
        task=job.task,
        reward=final.reward,
        final_text=last.final_text,
        messages=last.messages,
        spans=final.spans,
        failure=failure_of(final.status, bool(parts), last.engine_errors),
        error=final.error or "\n".join(last.engine_errors),
        ledger=last.ledger,
        segments=parts,
        account=account(last.ledger, parts),
        counters=last.counters,
        seconds=final.ended - final.started,
        superseded=superseded,
        emitted=final.rewards,
        engine_errors=last.engine_errors,
        earlier=tuple(
            Try(session.ledger, attempt.error or "", session.engine_errors)
            for session, attempt in zip(sealed[:-1], outcome.attempts[:-1], strict=True)
        ),
    )


def refuse_broken(sealed: list[SealedSession]) -> None:
    """Raise the InvariantError that broke one of the sessions, if one did."""
    for session in sealed:
        if session.broken is not None:
            raise session.broken


def failure_of(status: str, has_tokens: bool, engine_errors: tuple[str, ...]) -> Failure:
    """Which boundary broke. status: Agent Lightning's of the attempt; has_tokens: anything of it may train."""
    if status == "timeout":
        return "deadline"
    if status != "succeeded":
        return "engine_error" if engine_errors else "agent_error"
    if has_tokens:
        return ""
    return "engine_error" if engine_errors else "no_llm_call"
