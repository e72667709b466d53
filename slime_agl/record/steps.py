"""One record per step: the file of slime's rollout process and those of its workers, read as one.

Workers write `step-000001.worker-0.jsonl` beside `step-000001.jsonl`. Either may be absent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from slime_agl.errors import RecordError
from slime_agl.record.run import Record, RecordedExecution, step_of, worker_file, worker_of

# What all files of a step must agree on. `run`, if recorded, tells it from an earlier run into the same directory.
IDENTITY = ("name", "step", "run", "agent", "model", "checkpoint", "stop_ids")
# Parts left out to report individually.
MOST_LISTED = 20


def by_step(files: Iterable[Path]) -> list[list[Path]]:
    """Group files by step, steps and evaluations by number: first the step's own file, then its workers' by number."""
    return [list(group) for _, group in groupby(sorted(files, key=_place), key=step_of)]


def merged(parts: Sequence[Record], unread: Mapping[Path, str]) -> Record:
    """One record of the files of a step. unread: files of it that hold nothing, with the reason.

    Executions are in order of their Samples. Each counts once: one that two files hold, and one that a worker recorded
    before it ended and that ran again on another. Files that an earlier run left of the same step do not count.
    `skipped` tells what was left out.

    Raises:
        RecordError: the files are not of one run.
    """
    parts, stale = _of_this_run(parts)
    _require_one_run(parts)
    executions, left_out = _each_once(parts)
    workers = tuple(dict.fromkeys(number for part in parts for number in part.workers))
    present = {worker_of(path) for path in (*unread, *(part.path for part in parts))}
    absent = [
        f"{worker_file(parts[0].path, number).name} is missing, though that worker took part; copy it here from the "
        "machine it ran on"
        for number in workers
        if number not in present
    ]
    return Record(
        path=parts[0].path,
        header=parts[0].header,
        tokens=_tokens(parts),
        executions=tuple(sorted(executions, key=_order)),
        skipped=listed_some([*stale, *absent, *left_out]),
        workers=workers,
        parts=tuple(parts),
        unread=tuple(unread.values()),
    )


def listed_some(told: Sequence[str]) -> tuple[str, ...]:
    """The first of many messages, and the number of the others."""
    more = len(told) - MOST_LISTED
    return tuple(told) if more <= 0 else (*told[:MOST_LISTED], f"{more} more lines are skipped")


def _place(path: Path) -> tuple[int, str, int, str]:
    step, worker = step_of(path), worker_of(path)
    number = step.rpartition("-")[2]
    counted = number.isascii() and number.isdecimal()
    return int(number) if counted else 0, step, -1 if worker is None else worker, path.name


def _of_this_run(parts: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """The files that belong to the step's own, if it has one, and what is left out with the reason."""
    own, kept, stale = parts[0], [parts[0]], []
    for part in parts[1:]:
        if worker_of(own.path) is None and part.header.get("run") != own.header.get("run"):
            stale.append(f"{part.path.name} is left out: it is of another run of this step; move it elsewhere")
        elif own.workers and worker_of(part.path) not in own.workers:
            named = ", ".join(map(str, own.workers))
            stale.append(
                f"{part.path.name} is left out: {own.path.name} names workers {named}; it is of another run of this "
                "step"
            )
        else:
            kept.append(part)
    return kept, stale


def _require_one_run(parts: Sequence[Record]) -> None:
    first = parts[0]
    for other in parts[1:]:
        for name in IDENTITY:
            mine, theirs = first.header.get(name), other.header.get(name)
            if mine != theirs:
                raise RecordError(
                    f"{first.path} and {other.path} are not of the same step of one run: {name} is {_short(mine)} in "
                    f"the first and {_short(theirs)} in the second; move the one that another run left out of "
                    f"{first.path.parent}"
                )


def _tokens(parts: Sequence[Record]) -> dict[int, bytes]:
    texts: dict[int, bytes] = {}
    for part in parts:
        for i, text in part.tokens.items():
            if texts.setdefault(i, text) != text:
                first = next(one.path for one in parts if i in one.tokens)
                raise RecordError(
                    f"{first} and {part.path} were written with different tokenizers: token {i} is {texts[i]!r} in the "
                    f"first and {text!r} in the second; give all machines the same --hf-checkpoint"
                )
    return texts


@dataclass(frozen=True, slots=True)
class _Found:
    file: str
    execution: RecordedExecution

    @property
    def name(self) -> str:
        return self.execution.ledger.rollout_id


def _each_once(parts: Sequence[Record]) -> tuple[list[RecordedExecution], list[str]]:
    """The executions that count, and what is left out with the reason."""
    first: dict[str, _Found] = {}
    delivered: dict[int, _Found] = {}
    kept: dict[int, RecordedExecution] = {}
    left_out: list[str] = []
    for part in parts:
        for execution in part.executions:
            found = _Found(part.path.name, execution)
            if first.setdefault(found.name, found).file != found.file:
                left_out.append(f"{found.name} of {found.file} is left out: {first[found.name].file} has it too")
                continue
            kept[id(execution)] = execution
            number = _trained_as(part, execution)
            if number is None or (other := delivered.setdefault(number, found)).file == found.file:
                continue
            # It ran again because the worker that had recorded it ended before it was delivered.
            early, late = sorted((other, found), key=_started)
            delivered[number] = late
            del kept[id(early.execution)]
            left_out.append(
                f"{early.name} of {early.file} is left out: it ran again as {late.name} of {late.file}, which was "
                "delivered"
            )
    return list(kept.values()), left_out


def _trained_as(part: Record, execution: RecordedExecution) -> int | None:
    """The number under which an execution trains; None if it does not, or is of an evaluation, where numbers repeat."""
    if part.header.get("name") != "step":
        return None
    return next((one.rollout_id for one in execution.samples if not one.removed and any(one.mask)), None)


def _started(found: _Found) -> tuple[float, str]:
    return found.execution.started, found.name


def _order(execution: RecordedExecution) -> tuple[float, float, str]:
    """Sort key: the Sample's place in the data; then, for what has none or shares one, the time it started."""
    places = (place for sample in execution.samples for place in (sample.index, sample.rollout_id))
    place = next((place for place in places if place is not None), math.inf)
    return place, execution.started, execution.ledger.rollout_id


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
