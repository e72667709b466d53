"""The record of a training run: one append-only file per step, readable even after a crash.

A file is JSON lines. The header holds format, version, step, model and settings. It is followed by `tokens` lines, each
with the texts of ids that occur for the first time, and `execution` lines. Each line is a single write, so a crash
truncates at most the last one, which readers skip. With workers, each writes a file of its own, and a `workers` line in
the step's own file numbers them.
Credentials in tasks, prompts, spans and tracebacks are blotted out; the line says where and how many. Only the user
who started the run may read the file.
"""

from __future__ import annotations

import json
import os
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from slime_agl.errors import ConfigError, EngineFailure
from slime_agl.record.blot import BLOTTED_ID, MARK, blot, blot_ledger, blot_text
from slime_agl.record.codec import encode_ledger
from slime_agl.record.said import Said, blotted_said, encode_said
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import Segment, segments

FORMAT, SUFFIX = "slime_agl.record", ".jsonl"
# Version 2 adds what a rerun needs: settings in the header; row, engine_errors and earlier attempts of an execution.
# Version 3 adds the account of blotted credentials, version 4 messages and the eval dataset.
VERSION, READS = 4, (1, 2, 3, 4)

TokenBytes = Callable[[Sequence[int]], list[bytes]]

_WORKER = re.compile(r"(?P<step>.+)\.worker-(?P<number>\d{1,9})", re.DOTALL)


def worker_file(path: Path, number: int) -> Path:
    """The file of a worker, `step-000001.worker-0.jsonl`, beside the step's own at `path`."""
    return path.with_name(f"{step_of(path)}.worker-{number}{SUFFIX}")


def step_of(path: Path) -> str:
    """The step that a file belongs to, such as `step-000001`."""
    match = _WORKER.fullmatch(path.name.removesuffix(SUFFIX))
    return match["step"] if match else path.name.removesuffix(SUFFIX)


def worker_of(path: Path) -> int | None:
    """The number of the worker that wrote a file; None for a step's own."""
    match = _WORKER.fullmatch(path.name.removesuffix(SUFFIX))
    return int(match["number"]) if match else None


class RecordedCredit(NamedTuple):
    """The credit of one trained turn of a Sample, as `slime_agl.credit.turns.TurnCredit` explains it."""

    start: int
    end: int
    value: float
    reward: float
    state: str = ""
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSample:
    """A training sample, except for what the ledger already holds.

    segment: its index among the execution's segments. mask: its loss mask, one entry per response token.
    removed: whether slime was told to drop it. credit: of its turns, empty unless `agl.credit.span` is `turn`.
    """

    index: int | None
    group_index: int | None
    rollout_id: int | None
    segment: int
    status: str
    reward: object
    mask: array
    removed: bool = False
    credit: tuple[RecordedCredit, ...] = ()


@dataclass(frozen=True, slots=True)
class Try:
    """A failed attempt of an execution that was followed by another.

    error: its traceback. engine_errors: engine failures reported to its agent, in order.
    """

    ledger: Ledger
    error: str = ""
    engine_errors: tuple[EngineFailure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExecution:
    """An execution: its tokens and outcome.

    task: the agent's input. reward: of the execution. rewards: (number of turns before it, dimensions) in order; a NaN
    is read back as None. spans: without bulky attributes, as plain data.
    failure: '' or the boundary that broke. error: the traceback. started: seconds since the epoch.
    counters: the gateway's. engine_errors: as in Try. earlier: the attempts before the one described here.
    row: prompt, label, metadata and custom_rm_path of the Sample it was made from, if `task` does not hold them.
    blotted: number of credentials removed, by place. refused: as in Execution.
    said: messages by turn; turns whose prompt the agent rendered itself have none, nor has an execution with images.
    dataset: the eval dataset of its row, '' in training. unused: why its group was not delivered to the trainer, such
    as `filtered`; '' if it was.
    """

    ledger: Ledger
    task: object
    reward: object
    failure: str = ""
    error: str = ""
    started: float = 0.0
    seconds: float = 0.0
    samples: tuple[RecordedSample, ...] = ()
    rewards: tuple[tuple[int, Mapping[str, float | None]], ...] = ()
    spans: tuple[dict[str, Any], ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    engine_errors: tuple[EngineFailure, ...] = ()
    earlier: tuple[Try, ...] = ()
    row: Mapping[str, Any] | None = None
    blotted: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""
    said: Mapping[int, Said] = field(default_factory=dict)
    dataset: str = ""
    unused: str = ""

    @property
    def segments(self) -> tuple[Segment, ...]:
        return segments(self.ledger)

    def ids(self) -> set[int]:
        """All token ids that occur."""
        found: set[int] = set()
        for ledger in (self.ledger, *(one.ledger for one in self.earlier)):
            for turn in ledger.turns:
                found.update(turn.new_ids)
                for part in turn.parts:
                    found.update(part.ids)
        return found


class RecordWriter:
    """Appends executions to a file. header: JSON-able facts about the step.

    token_bytes: maps ids to their texts as UTF-8 bytes; called once per id and file.

    Raises:
        ConfigError: the file cannot be created.
    """

    def __init__(self, path: Path, header: Mapping[str, object], token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._texts: dict[int, bytes] = {BLOTTED_ID: MARK.encode()}
        self._written: set[int] = set()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: BinaryIO = _private(path)
        except OSError as error:
            raise ConfigError(
                f"agl.record_dir: {path} cannot be written ({error.strerror}); name a writable directory"
            ) from error
        blotted: Counter[str] = Counter()
        plain = {name: blot(value, name, blotted) for name, value in header.items()}
        self._append({"format": FORMAT, "version": VERSION, "made": time.time(), **plain, "blotted": dict(blotted)})

    def write(self, execution: RecordedExecution) -> None:
        """Append an execution, and the texts of ids that are new to the file."""
        unknown = sorted(execution.ids() - self._texts.keys())
        if unknown:
            self._texts.update(zip(unknown, self._token_bytes(unknown), strict=True))
        kept = _blotted(execution, self._texts.__getitem__)
        new = sorted(kept.ids() - self._written)
        if new:
            self._written.update(new)
            self._append({"tokens": [[i, _token_text(self._texts[i])] for i in new]})
        self._append({"execution": _encode(kept)})

    def name_workers(self, numbers: Iterable[int]) -> None:
        """Append which workers have a file of this step, so that readers miss one that is not there."""
        self._append({"workers": sorted(numbers)})

    def close(self) -> None:
        self._file.close()

    def _append(self, line: Mapping[str, object]) -> None:
        try:
            data = orjson.dumps(line)
        except TypeError:  # half a surrogate pair, as file names in errors may have
            data = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace")
        self._file.write(data + b"\n")


def _private(path: Path) -> BinaryIO:
    """Create or truncate a file that only this user may read: it holds conversations."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.fchmod(number, 0o600)
    return os.fdopen(number, "wb", buffering=0)


def _blotted(execution: RecordedExecution, bytes_of: Callable[[int], bytes]) -> RecordedExecution:
    """The execution as JSON-able data without credentials."""
    account: Counter[str] = Counter()
    earlier = tuple(
        Try(
            blot_ledger(one.ledger, bytes_of, account, place=f"attempt {at}, "),
            blot_text(one.error, "error", account),
            _blotted_failures(one.engine_errors, account),
        )
        for at, one in enumerate(execution.earlier)
    )
    plain = {name: blot(getattr(execution, name), name, account) for name in ("task", "reward", "row")}
    samples = tuple(replace(one, reward=blot(one.reward, "reward", account)) for one in execution.samples)
    return replace(
        execution,
        ledger=blot_ledger(execution.ledger, bytes_of, account),
        earlier=earlier,
        samples=samples,
        error=blot_text(execution.error, "error", account),
        refused=blot_text(execution.refused, "refused", account),
        engine_errors=_blotted_failures(execution.engine_errors, account),
        rewards=tuple((after, blot(dimensions, "rewards", account)) for after, dimensions in execution.rewards),
        spans=tuple(blot(span, "spans", account) for span in execution.spans),
        counters=blot(execution.counters, "counters", account),
        said=blotted_said(execution.said, account),
        **plain,
        blotted=dict(account),
    )


def _blotted_failures(failures: tuple[EngineFailure, ...], account: Counter[str]) -> tuple[EngineFailure, ...]:
    return tuple(one._replace(message=blot_text(one.message, "engine_errors", account)) for one in failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A file read back, or the files of one step. tokens: id -> bytes of its text.

    torn: bytes of a truncated last line that was skipped. skipped: malformed lines, each with the reason.
    workers: numbers of the workers that the file says took part, each with a file of its own.
    parts: what was merged into this record; unread: further files of the step, each with the reason it was not read.
    """

    path: Path
    header: dict[str, Any]
    tokens: Mapping[int, bytes]
    executions: tuple[RecordedExecution, ...]
    torn: int = 0
    skipped: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    parts: tuple[Record, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`step-000001` for a whole step; for one file of several, with its worker."""
        return step_of(self.path) if self.parts else self.path.name.removesuffix(SUFFIX)

    def flaws(self) -> list[str]:
        """Say what was not read, each with its file."""
        flaws = [f"{self.path}: {words}" for words in self.skipped]
        if self.torn:
            flaws.append(f"{self.path}: an unfinished last line of {self.torn} bytes was skipped")
        return [*flaws, *(flaw for part in self.parts for flaw in part.flaws()), *self.unread]

    def texts(self, ids: Iterable[int]) -> list[str]:
        """The text of each id. A character split across tokens belongs to its last one."""
        return texts_of(self.tokens.get(i, f"<{i}>".encode()) for i in ids)


def texts_of(pieces: Iterable[bytes]) -> list[str]:
    """The text of each token from its bytes. A character split across tokens belongs to its last one."""
    texts, pending = [], b""
    for piece in pieces:
        text, pending = _whole(pending + piece)
        texts.append(text)
    if pending:
        texts[-1] += pending.decode("utf-8", "replace")
    return texts


_SCALARS = ("task", "reward", "failure", "error", "started", "seconds", "refused")
_SAMPLE_SCALARS = ("index", "group_index", "rollout_id", "segment", "status", "reward", "removed")


def _encode(execution: RecordedExecution) -> dict[str, object]:
    return {
        **{name: getattr(execution, name) for name in _SCALARS},
        "rewards": execution.rewards,
        "spans": execution.spans,
        "counters": dict(execution.counters),
        "engine_errors": [one._asdict() for one in execution.engine_errors],
        "earlier": [
            {
                "ledger": encode_ledger(one.ledger),
                "error": one.error,
                "engine_errors": [failure._asdict() for failure in one.engine_errors],
            }
            for one in execution.earlier
        ],
        "row": execution.row,
        "blotted": dict(execution.blotted),
        "said": encode_said(execution.said),
        "dataset": execution.dataset,
        "unused": execution.unused,
        "samples": [
            {name: getattr(sample, name) for name in _SAMPLE_SCALARS}
            | {"mask": _stretches(sample.mask)}
            | ({"credit": [list(turn) for turn in sample.credit]} if sample.credit else {})
            for sample in execution.samples
        ],
        "ledger": encode_ledger(execution.ledger),
    }


def _stretches(mask: Iterable[int]) -> list[int]:
    """Run-length encode a mask: lengths of alternating stretches, starting with 0s."""
    stretches = [(value, len(list(stretch))) for value, stretch in groupby(mask)]
    return [0] * (bool(stretches) and stretches[0][0] == 1) + [length for _, length in stretches]


def _token_text(text: bytes) -> str | list[int]:
    """A token's bytes as JSON: a string if valid UTF-8, else a list of numbers."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return list(text)


def _whole(pending: bytes) -> tuple[str, bytes]:
    """Split bytes into whole characters and an incomplete rest. Invalid bytes are replaced."""
    for keep in range(min(3, len(pending)) + 1):
        head, rest = pending[: len(pending) - keep], pending[len(pending) - keep :]
        try:
            return head.decode("utf-8"), rest
        except UnicodeDecodeError:
            continue
    return pending.decode("utf-8", "replace"), b""
