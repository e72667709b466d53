"""Figures per recorded execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from slime_agl.errors import InvariantError, RecordError
from slime_agl.record.run import Record, RecordedExecution
from slime_agl.report.fate import fates, untrained

Pair = tuple[Record, RecordedExecution]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One execution in figures.

    name: Agent Lightning's rollout id. sampled, trained: output tokens; masked: those that do not train.
    reward: also None for a failure whose Samples are removed from training, where it is a placeholder.
    glue: tokens of prompts and results. logprob: mean over sampled tokens, None without any.
    weights: versions that sampled it, in order. untrained: masked tokens by reason. blotted: credentials by place.
    """

    step: str
    name: str
    index: int | None
    group: int | None
    reward: float | None
    failure: str
    turns: int
    segments: int
    sampled: int
    trained: int
    masked: int
    glue: int
    forks: dict[str, int]
    untrained: dict[str, int]
    blotted: dict[str, int]
    retries: int
    weights: tuple[str, ...]
    logprob: float | None
    seconds: float
    engine_seconds: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def row(record: Record, execution: RecordedExecution) -> Row:
    """Summarise one execution. Raises RecordError if its masks do not fit its tokens."""
    turns = execution.ledger.turns
    told = fates(execution)
    sampled = sum(len(fate.trained) for fate in told)
    trained = sum(sum(fate.trained) for fate in told)
    logprobs = sum(sum(part.logprobs) for turn in turns for part in turn.parts)
    first = execution.samples[0] if execution.samples else None
    versions = (part.weight_version for turn in turns for part in turn.parts if len(part.ids))
    return Row(
        step=record.name,
        name=execution.ledger.rollout_id,
        index=first.index if first else None,
        group=first.group_index if first else None,
        reward=None if _is_placeholder(execution) else number(execution.reward),
        failure=execution.failure,
        turns=len(turns),
        segments=len(execution.segments),
        sampled=sampled,
        trained=trained,
        masked=sampled - trained,
        glue=sum(len(turn.new_ids) for turn in turns),
        forks=dict(Counter(turn.fork for turn in turns if turn.fork)),
        untrained=dict(untrained(execution)),
        blotted=dict(execution.blotted),
        retries=execution.counters.get("joined_retries", 0),
        weights=tuple(dict.fromkeys(version for version in versions if version)),
        logprob=logprobs / sampled if sampled else None,
        seconds=execution.seconds,
        engine_seconds=sum(turn.engine_seconds for turn in turns),
    )


def _is_placeholder(execution: RecordedExecution) -> bool:
    return bool(execution.failure) and all(sample.removed for sample in execution.samples)


def readable(records: Sequence[Record]) -> tuple[list[Pair], list[str]]:
    """Split into executions that can be summarised, and a message per other one."""
    pairs, unreadable = [], []
    for record in records:
        for execution in record.executions:
            try:
                row(record, execution)
            except (RecordError, InvariantError) as error:
                unreadable.append(f"{record.path}: an execution is skipped ({error})")
            else:
                pairs.append((record, execution))
    return pairs, unreadable


def number(reward: object) -> float | None:
    """Return a reward as one number: the first of several dimensions."""
    if isinstance(reward, dict):
        reward = next(iter(reward.values()), None)
    return float(reward) if isinstance(reward, int | float) else None
