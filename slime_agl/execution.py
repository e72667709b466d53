"""A job, and the execution that results from it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from slime_agl.credit.emitted import Emitted, Reward
from slime_agl.errors import EngineFailure, RunnerError, SandboxError, SandboxExhausted
from slime_agl.gateway.sessions.session import SealedSession
from slime_agl.lightning.outcome import Lane, RolloutOutcome
from slime_agl.record.run import Try
from slime_agl.record.said import Said
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import Account, Segment, account, segments
from slime_agl.trace.turn import SKIPPED

__all__ = ["Execution"]

if TYPE_CHECKING:
    from slime_agl.lightning._agl import Span

# Leads a refused request that is quoted in an error.
REFUSED = "the gateway refused its first request: "
# Leads the reasons of an execution all of whose turns `agl.train` excludes.
LEFT_OUT = "none of its turns trains under agl.train"
SANDBOX_ERRORS = (SandboxError.__name__, SandboxExhausted.__name__)

Failure = Literal[
    "", "agent_error", "engine_error", "sandbox_error", "runner_error", "deadline", "no_llm_call", "no_reward"
]


class Watcher(Protocol):
    """Is told when agents begin."""

    def begin(self, step: int) -> None:
        """An attempt has its slot and its agent runs next. step: the latest step that has begun."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One execution to run: the agent's task, and what its turns may do and must bring (see SessionSpec).

    lane: training, or an evaluation, which goes on while training is parked. max_attempts: an upper bound on attempts
    below the configured one. watcher: told of each attempt.
    """

    task: object
    lane: Lane
    session_key: str
    sampling: Mapping[str, object]
    response_limit: int | None
    context_limit: int | None = None
    experts_width: int | None = None
    max_attempts: int | None = None
    watcher: Watcher | None = None


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class Execution:
    """A finished execution, as reward functions receive it.

    task: the agent's input. reward: the reward that the agent returned or last emitted (a dict with the primary value
    first if it has several dimensions), None without one.
    emitted: all rewards in order, with the turns that each belongs to.
    final_text: text of the last turn; messages: the conversation in its prompt.
    spans: Agent Lightning's spans in order. error: the agent's traceback when it failed; error_code: the code of
    the refused model call that it came of, such as `context_length_exceeded`, '' for other errors.
    failure: the boundary that broke, or ''. segments: the token sequences that may train.
    seconds: wall time; engine_seconds: time spent waiting for the engine, parked turns included, summed over turns.
    engine_errors: engine failures reported to the agent, in order. earlier: previous attempts.
    refused: the first request that the gateway refused, quoted with status, code and message; '' without one. The error
    of a failed execution ends with it.
    said: messages by turn, as the agent sent them and was answered.
    """

    rollout_id: str
    attempt_id: str
    task: object
    reward: Reward | None
    final_text: str
    messages: list[dict[str, Any]]
    spans: tuple[Span, ...]
    failure: Failure
    error: str
    error_code: str = ""
    ledger: Ledger
    segments: tuple[Segment, ...]
    account: Account
    counters: Counter[str]
    seconds: float
    superseded: Counter[str] = field(default_factory=Counter)
    emitted: tuple[Emitted, ...] = ()
    engine_errors: tuple[EngineFailure, ...] = ()
    earlier: tuple[Try, ...] = ()
    refused: str = ""
    said: Mapping[int, Said] = field(default_factory=dict)

    @property
    def engine_seconds(self) -> float:
        return sum(turn.engine_seconds for turn in self.ledger.turns)


def finish(job: Job, outcome: RolloutOutcome) -> Execution:
    """Combine the outcome of an execution with the sealed sessions of its attempts.

    Raises:
        InvariantError: a token invariant broke in one of the sessions.
    """
    final = outcome.final
    sealed: list[SealedSession] = [attempt.sealed for attempt in outcome.attempts]
    refuse_broken(sealed)
    last = sealed[-1]
    parts = segments(last.ledger)
    superseded: Counter[str] = Counter()
    for session in sealed[:-1]:
        superseded["superseded_attempt"] += sampled_tokens(session.ledger)
    failure = failure_of(final.status, bool(parts), last.engine_errors, final.error_type or "")
    error = final.error or "\n".join(one.message for one in last.engine_errors)
    skipped = Counter(turn.untrained for turn in last.ledger.turns if turn.untrained.startswith(SKIPPED))
    if failure == "no_llm_call" and skipped:
        told = ", ".join(f"{reason} {count}" for reason, count in skipped.items())
        error = f"{LEFT_OUT}: {told}"
    if failure and last.refused:
        error = f"{error.rstrip()}\n{REFUSED}{last.refused}".lstrip()
    return Execution(
        rollout_id=outcome.rollout_id,
        attempt_id=final.attempt_id,
        task=job.task,
        reward=final.reward,
        final_text=last.final_text,
        messages=last.messages,
        spans=final.spans,
        failure=failure,
        error=error,
        error_code=final.error_code,
        ledger=last.ledger,
        segments=parts,
        account=account(last.ledger, parts),
        counters=sum((attempt.counts for attempt in outcome.attempts), last.counters),
        seconds=final.ended - final.started,
        superseded=superseded,
        emitted=final.rewards,
        engine_errors=last.engine_errors,
        earlier=tuple(
            Try(session.ledger, attempt.error or "", session.engine_errors)
            for session, attempt in zip(sealed[:-1], outcome.attempts[:-1], strict=True)
        ),
        refused=last.refused,
        said=last.said,
    )


def lost(job: Job, error: str) -> Execution:
    """The execution of a job of which nothing is left, because whatever ran it died."""
    rollout_id = f"lost-{uuid.uuid4().hex}"
    ledger = Ledger(rollout_id, "")
    return Execution(
        rollout_id=rollout_id,
        attempt_id="",
        task=job.task,
        reward=None,
        final_text="",
        messages=[],
        spans=(),
        failure="engine_error",
        error=error,
        ledger=ledger,
        segments=(),
        account=account(ledger, ()),
        counters=Counter(),
        seconds=0.0,
    )


def sampled_tokens(ledger: Ledger) -> int:
    return sum(turn.output_length for turn in ledger.turns)


def refuse_broken(sealed: Sequence[SealedSession]) -> None:
    """Raise the InvariantError that broke one of the sessions, if any."""
    for session in sealed:
        if session.broken is not None:
            raise session.broken


def failure_of(
    status: str, has_tokens: bool, engine_errors: tuple[EngineFailure, ...], error_type: str = ""
) -> Failure:
    """Name the boundary that broke.

    status, error_type: of the attempt, and the class name of its error. has_tokens: some of its tokens may train.
    """
    if status == "timeout":
        return "deadline"
    if error_type in SANDBOX_ERRORS:
        return "sandbox_error"
    if error_type == RunnerError.__name__:
        return "runner_error"
    if status != "succeeded":
        return "engine_error" if engine_errors else "agent_error"
    if has_tokens:
        return ""
    return "engine_error" if engine_errors else "no_llm_call"
