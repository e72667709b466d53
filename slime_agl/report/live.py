"""A run in progress: figures by step, from the rows of its executions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from slime_agl.record.following import FollowedStep
from slime_agl.record.run import Record, RecordedExecution, worker_file, worker_of
from slime_agl.report.summary import Row, row

LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """What is kept of an execution. error: the last line of its traceback. number: it trains as, None if it does not.

    unused: as in RecordedExecution.
    """

    row: Row
    number: int | None
    started: float
    error: str
    unused: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """One step. seconds: from its start to what was written last. groups: of several executions; flat: those of them
    with equal rewards. low, high: of the rewards' middle half. delivered: executions that were handed to the trainer.
    p90: seconds within which nine of ten executions ended. missing: workers whose files are not here.
    """

    name: str
    made: float
    seconds: float
    executions: int
    delivered: int
    reward: float | None
    low: float | None
    high: float | None
    groups: int
    flat: int
    failed: dict[str, int]
    turns: float
    segments: float
    sampled: int
    trained: int
    untrained: dict[str, int]
    forks: dict[str, int]
    engine_share: float | None
    p90: float | None
    weights: tuple[str, ...]
    last_error: str
    missing: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def seen(record: Record, execution: RecordedExecution) -> Seen:
    """Digest an execution for `figures`. Raises RecordError if its masks do not fit its tokens."""
    lines = execution.error.rstrip().splitlines()
    trains = (one.rollout_id for one in execution.samples if not one.removed and any(one.mask))
    return Seen(
        row=row(record, execution),
        number=None if execution.dataset or execution.unused else next(trains, None),
        started=execution.started,
        error=lines[-1][:LONGEST_ERROR] if lines else "",
        unused=execution.unused,
    )


def figures(step: FollowedStep) -> StepFigures:
    """The figures of a step; an execution that two workers wrote down counts once."""
    own = step.own
    made = _number((own.header or {}).get("made"))
    kept = _each_once(step)
    rows = [one.row for one in kept]
    delivered = [one.row for one in kept if not one.unused]
    rewards = [one.reward for one in delivered if one.reward is not None]
    groups = _groups(delivered)
    seconds = sum(one.seconds for one in rows)
    low, high = _middle(rewards)
    errors = [one.error for one in kept if one.row.failure and one.error]
    return StepFigures(
        name=step.name,
        made=made,
        seconds=max(0.0, max(tail.written for tail in step.tails) - made),
        executions=len(rows),
        delivered=len(delivered),
        reward=statistics.fmean(rewards) if rewards else None,
        low=low,
        high=high,
        groups=len(groups),
        flat=sum(len(set(group)) == 1 for group in groups),
        failed=dict(Counter(one.failure for one in rows if one.failure)),
        turns=_mean([one.turns for one in rows]),
        segments=_mean([one.segments for one in rows]),
        sampled=sum(one.sampled for one in rows),
        trained=sum(one.trained for one in rows),
        untrained=dict(_sum([one.untrained for one in rows])),
        forks=dict(_sum([one.forks for one in rows])),
        engine_share=sum(one.engine_seconds for one in rows) / seconds if seconds else None,
        p90=sorted(one.seconds for one in rows)[int(0.9 * (len(rows) - 1))] if rows else None,
        weights=tuple(dict.fromkeys(version for one in rows for version in one.weights)),
        last_error=errors[-1] if errors else "",
        missing=_missing(step),
    )


def _each_once(step: FollowedStep) -> list[Seen]:
    by_name: dict[str, Seen] = {}
    for tail in step.tails:
        for one in tail.kept:
            by_name.setdefault(one.row.name, one)
    latest: dict[int, Seen] = {}
    kept = []
    for one in sorted(by_name.values(), key=lambda one: one.started):
        if one.number is None:
            kept.append(one)
        else:
            latest[one.number] = one  # it ran again because the worker that had it died
    return [*kept, *latest.values()]


def _missing(step: FollowedStep) -> tuple[str, ...]:
    own = step.own
    if worker_of(own.path) is not None:
        return ()
    present = {worker_of(tail.path) for tail in step.tails}
    return tuple(worker_file(own.path, number).name for number in sorted(own.workers) if number not in present)


def _groups(rows: Sequence[Row]) -> list[list[float]]:
    """Rewards of each group that has several."""
    groups: dict[int, list[float]] = {}
    for one in rows:
        if one.reward is not None and one.group is not None:
            groups.setdefault(one.group, []).append(one.reward)
    return [group for group in groups.values() if len(group) > 1]


def _middle(values: Sequence[float]) -> tuple[float | None, float | None]:
    if len(values) < 2:
        return None, None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _sum(counts: Sequence[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
