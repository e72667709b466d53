"""The result of one row: counts of its execution, and its Samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slime_agl.credit.emitted import Reward
from slime_agl.credit.per_agent import agent_of, per_agent
from slime_agl.execution import Execution, Failure
from slime_agl.host import Sample
from slime_agl.runtime import Kept
from slime_agl.trace.segments import Account, Segment

Spans = list[list[Any]]
# Fields of a Sample that hold replay data.
REPLAY = ("rollout_routed_experts", "rollout_top_p_token_ids", "rollout_top_p_token_offsets")


@dataclass(frozen=True, slots=True)
class Limits:
    """response: maximum tokens per turn. context: maximum tokens per segment. None: the engine's own limit."""

    response: int | None
    context: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """An execution without its tokens and messages; fields as in Execution.

    turns, segments: their numbers. gateway_seconds: time in turns that was not spent waiting for the engine.
    dangling: rewards that name a turn that does not exist. responses: per segment, the length of its response and the
    spans of it by the weights that sampled them (see `response_of`). agents: the reward addressed to each agent whose
    tokens train, None where the execution's own counts for it (see `per_agent`).
    """

    rollout_id: str
    failure: Failure
    error: str
    account: Account
    counters: Counter[str]
    superseded: Counter[str]
    turns: int
    segments: int
    seconds: float
    engine_seconds: float
    gateway_seconds: float
    dangling: int
    responses: tuple[tuple[int, Spans], ...]
    agents: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def sampled(self) -> int:
        """Tokens that its attempts sampled."""
        return self.account.sampled + self.superseded.total()


@dataclass(frozen=True, slots=True)
class Entry:
    """An execution and its Samples, at least one. usable: something of it trains or counts.

    kept: the execution, or a handle while a worker keeps it; ask the runtime for it.
    off_policy: number of tokens masked because older weights sampled them.
    """

    samples: list[Sample]
    summary: Summary
    usable: bool
    kept: Execution | Kept | None = field(default=None, compare=False)
    off_policy: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of replay data and images, which outweigh everything else by far."""
        return sum(_nbytes(sample) for sample in self.samples)


def summary_of(execution: Execution) -> Summary:
    turns = execution.ledger.turns
    return Summary(
        rollout_id=execution.rollout_id,
        failure=execution.failure,
        error=execution.error,
        account=execution.account,
        counters=execution.counters,
        superseded=execution.superseded,
        turns=len(turns),
        segments=len(execution.segments),
        seconds=execution.seconds,
        engine_seconds=execution.engine_seconds,
        gateway_seconds=sum(turn.ended - turn.started - turn.engine_seconds for turn in turns),
        dangling=sum(item.dangling for item in execution.emitted),
        responses=tuple(response_of(segment) for segment in execution.segments),
        agents=_agents(execution),
    )


def _agents(execution: Execution) -> dict[str, float | None]:
    parts = execution.segments
    addressed = per_agent([item for item in execution.emitted if not item.dangling], parts)
    return {agent_of(part): _first(reward) for part, reward in zip(parts, addressed, strict=True)}


def _first(reward: Reward | None) -> float | None:
    return next(iter(reward.values())) if isinstance(reward, Mapping) else reward


def response_of(segment: Segment) -> tuple[int, Spans]:
    """Length of a segment's response in tokens, and its spans by the weights that sampled them.

    A span is [start, end, version], ascending, `end` excluded. Tokens outside all spans do not train here, or the
    engine reported no version. `Sample.weight_versions` has one version per engine answer, and cannot tell the parts of
    a turn apart.
    """
    spans: Spans = []
    first, at = segment.first_trained, 0
    for place, turn in enumerate(segment.turns[first:], first):
        at += len(turn.new_ids) if place > first else 0
        for part in turn.parts:
            start, at = at, at + len(part.ids)
            if not part.weight_version or start == at or turn.index not in segment.trained:
                continue
            if spans and spans[-1][1:] == [start, part.weight_version]:
                spans[-1][1] = at
            else:
                spans.append([start, at, part.weight_version])
    return at, spans


def _nbytes(sample: Sample) -> int:
    replay = [getattr(sample, name) for name in REPLAY]
    images = (sample.multimodal_train_inputs or {}).values()
    return sum(int(getattr(value, "nbytes", 0)) for value in (*replay, *images))
