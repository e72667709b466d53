"""What each turn of a recorded execution earned, and the advantage that it trains on."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime_agl.baseline import by_execution, by_turn
from slime_agl.credit.groups import Scored
from slime_agl.credit.turns import TurnCredit
from slime_agl.errors import ConfigError
from slime_agl.host.defaults import GAE, REWARD_POST_PROCESS
from slime_agl.host.estimators import given
from slime_agl.record.run import Record, RecordedCredit, RecordedExecution, RecordedSample
from slime_agl.report.summary import number
from slime_agl.trace.segments import Segment

# Estimators whose advantage is the reward relative to its group; others need what only the trainer has.
RELATIVE = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")


@dataclass(frozen=True, slots=True)
class Credit:
    """The credit of a segment or a turn. value: what it is judged by, None without a reward.

    earned: by the turn itself, None unless credit is by turn. advantage: None where a record cannot tell it: under an
    estimator that needs values or a KL divergence, in an evaluation, or for what trains nowhere.
    """

    value: float | None
    earned: float | None = None
    advantage: float | None = None


@dataclass(frozen=True, slots=True)
class Credits:
    """Of one execution. segments: by number. turns: by index, those that train."""

    segments: dict[int, Credit] = field(default_factory=dict)
    turns: dict[int, Credit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What has a value of its own: a turn of a Sample, or a Sample whose turns have none."""

    at: int
    execution: RecordedExecution
    segment: Segment
    sample: RecordedSample
    turn: RecordedCredit | None
    value: float | None


def credits_of(record: Record) -> list[Credits]:
    """The credit of each execution of a step, in the record's order."""
    judged = list(_judged(record))
    found = [Credits() for _ in record.executions]
    for one, advantage in zip(judged, _advantages(record, judged), strict=True):
        credits = found[one.at]
        if one.turn is None:
            told = Credit(one.value, None, advantage)
            credits.segments[one.sample.segment] = told
            credits.turns.update(dict.fromkeys(one.segment.trained, told))
        else:
            credits.segments.setdefault(one.sample.segment, Credit(number(one.sample.reward)))
            index = _turn_at(one.segment, one.turn.start)
            if index is not None:
                credits.turns[index] = Credit(one.turn.value, one.turn.reward, advantage)
    return found


def _judged(record: Record) -> Iterator[_Judged]:
    key = _mapping(record, "arguments").get("reward_key")
    for at, execution in enumerate(record.executions):
        parts = execution.segments
        for sample in execution.samples:
            if sample.segment >= len(parts):
                continue
            for turn in sample.credit or (None,):
                value = _primary(sample.reward, key) if turn is None else turn.value
                yield _Judged(at, execution, parts[sample.segment], sample, turn, value)


def _primary(reward: object, key: object) -> float | None:
    """The dimension that trains: the one of --reward-key, else the first."""
    return number(reward[key] if isinstance(reward, dict) and key in reward else reward)


def _turn_at(segment: Segment, start: int) -> int | None:
    """Index of the turn whose output begins at a token of the segment's response."""
    at = -len(segment.turns[segment.first_trained].new_ids)
    for turn in segment.turns[segment.first_trained :]:
        at += len(turn.new_ids)
        if at == start:
            return turn.index
        at += turn.output_length
    return None


def _advantages(record: Record, judged: Sequence[_Judged]) -> list[float | None]:
    """One per value; all None if the record cannot tell them."""
    args = _trainer(record)
    unknown: list[float | None] = [None] * len(judged)
    if args is None:
        return unknown
    counted = [at for at, one in enumerate(judged) if one.value is not None and not one.execution.unused]
    entries = [_scored(judged[at]) for at in counted]
    turns = [_turn_credit(judged[at]) for at in counted]
    try:
        if any(judged[at].turn for at in counted):
            values = by_turn(args, entries, turns, exact=False)
        else:
            values = by_execution(args, entries, exact=False)
    except ConfigError:  # a record of unknown origin, or of another version
        return unknown
    for at, value, entry in zip(counted, values, entries, strict=True):
        unknown[at] = None if entry.removed else value
    return unknown


def _trainer(record: Record) -> Namespace | None:
    """slime's arguments that decide advantages, if the reward relative to its group is the advantage under them."""
    recorded = _mapping(record, "trainer")
    args = Namespace(**{name: value for name, value in recorded.items() if isinstance(value, str | bool)})
    if record.header.get("name") != "step" or "advantage_estimator" not in args:
        return None
    post_process = getattr(args, "custom_reward_post_process_path", None)
    if post_process not in (None, REWARD_POST_PROCESS) or getattr(args, "custom_advantage_function_path", None) == GAE:
        return None
    if args.advantage_estimator not in RELATIVE or not given(args, "rewards_normalization"):
        return None
    args.agl = record.header.get("agl")
    return args


def _scored(one: _Judged) -> Scored:
    mask = one.sample.mask if one.turn is None else one.sample.mask[one.turn.start : one.turn.end]
    rollout = one.sample.rollout_id
    return Scored(
        group=one.sample.group_index,
        execution=("place", one.at) if rollout is None else ("rollout", rollout),
        reward=one.value or 0.0,
        trained=sum(mask),
        tokens=len(mask),
        removed=one.sample.removed,
    )


def _turn_credit(one: _Judged) -> TurnCredit:
    """The turn; a Sample without turns counts as one."""
    if one.turn is not None:
        return TurnCredit(**one.turn._asdict())
    value = one.value or 0.0
    return TurnCredit(start=0, end=max(1, len(one.sample.mask)), value=value, reward=value, total=value)


def _mapping(record: Record, name: str) -> Mapping[str, Any]:
    value = record.header.get(name)
    return value if isinstance(value, dict) else {}
