"""The record of a run: one append-only file a step, read back whole or after a crash.

A file is JSON lines. The first says what follows: format, version, step, model, settings. Then come `tokens`
lines, each with the texts of ids that stand in the file for the first time, and `execution` lines.
A line is written in one piece, so that a crash tears at most the last one; reading skips it.
Credentials that an agent left in its task, its prompts, its spans or its traceback are blotted out, and the line says
where and how many. Only the user who ran it may read the file.
"""

from __future__ import annotations

import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from slime_agl.errors import ConfigError
from slime_agl.record.blot import BLOTTED_ID, MARK, blot, blot_ledger, blot_text
from slime_agl.record.codec import encode_ledger
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import Segment, segments

FORMAT, SUFFIX = "slime_agl.record", ".jsonl"
# Version 2 adds what a rerun needs: settings in the header; row, engine_errors and earlier tries of an execution.
# Version 3 adds what was blotted.
VERSION, READS = 3, (1, 2, 3)

TokenBytes = Callable[[Sequence[int]], list[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSample:
    """A training sample, as far as the ledger does not tell it.

    segment: its place among the segments of the execution. mask: its loss mask, one entry a response token.
    removed: slime was told to leave it out.
    """

    index: int | None
    group_index: int | None
    rollout_id: int | None
    segment: int
    status: str
    reward: Any
    mask: array
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Try:
    """A try of an execution that another one followed, because it failed.

    error: its traceback. engine_errors: messages of engine failures that its agent was told of, in order.
    """

    ledger: Ledger
    error: str = ""
    engine_errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExecution:
    """One execution: its tokens, and what came of it.

    task: what the agent was given. reward: of the execution; rewards: (number of turns before it,
    dimensions) in the order they were given. spans: light ones, as plain data. failure: '' or the boundary that broke,
    error: the traceback. started: seconds since the epoch. counters: what the gateway counted.
    engine_errors: as in Try. earlier: the tries before the one that all this is about.
    row: prompt, label, metadata and custom_rm_path of the Sample that it was made of, where `task` does not tell them.
    blotted: how many credentials were taken out, by the place where they stood.
    """

    ledger: Ledger
    task: Any
    reward: Any
    failure: str = ""
    error: str = ""
    started: float = 0.0
    seconds: float = 0.0
    samples: tuple[RecordedSample, ...] = ()
    rewards: tuple[tuple[int, dict[str, float]], ...] = ()
    spans: tuple[dict[str, Any], ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    engine_errors: tuple[str, ...] = ()
    earlier: tuple[Try, ...] = ()
    row: Mapping[str, Any] | None = None
    blotted: Mapping[str, int] = field(default_factory=dict)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return segments(self.ledger)

    def ids(self) -> set[int]:
        """Every token id that occurs."""
        found: set[int] = set()
        for ledger in (self.ledger, *(one.ledger for one in self.earlier)):
            for turn in ledger.turns:
                found.update(turn.new_ids)
                for part in turn.parts:
                    found.update(part.ids)
        return found


class RecordWriter:
    """Appends executions to one file. header: what a reader should know of the step, JSON-able.

    token_bytes: the text of each of some ids, as UTF-8 bytes; each id is asked for once a file.

    Raises:
        ConfigError: the file cannot be made.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._texts: dict[int, bytes] = {BLOTTED_ID: MARK.encode()}
        self._told: set[int] = set()
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
        unknown = sorted(execution.ids() - self._texts.keys())
        if unknown:
            self._texts.update(zip(unknown, self._token_bytes(unknown), strict=True))
        kept = _blotted(execution, self._texts.__getitem__)
        new = sorted(kept.ids() - self._told)
        if new:
            self._told.update(new)
            self._append({"tokens": [[i, _shown(self._texts[i])] for i in new]})
        self._append({"execution": _encode(kept)})

    def close(self) -> None:
        self._file.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        self._file.write(orjson.dumps(line) + b"\n")


def _private(path: Path) -> BinaryIO:
    """A new file, or an emptied one, that nobody else may read. What agents are told stands in it."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.fchmod(number, 0o600)
    return os.fdopen(number, "wb", buffering=0)


def _blotted(execution: RecordedExecution, bytes_of: Callable[[int], bytes]) -> RecordedExecution:
    """The execution without credentials, and as data that JSON holds."""
    account: Counter[str] = Counter()
    earlier = tuple(
        Try(
            blot_ledger(one.ledger, bytes_of, account, place=f"attempt {at}, "),
            blot_text(one.error, "error", account),
            tuple(blot_text(error, "engine_errors", account) for error in one.engine_errors),
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
        engine_errors=tuple(blot_text(error, "engine_errors", account) for error in execution.engine_errors),
        rewards=tuple((after, blot(dimensions, "rewards", account)) for after, dimensions in execution.rewards),
        spans=tuple(blot(span, "spans", account) for span in execution.spans),
        counters=blot(execution.counters, "counters", account),
        **plain,
        blotted=dict(account),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One file, read. tokens: id -> bytes of its text.

    torn: bytes of an unfinished last line that were skipped. skipped: lines that are no part of a record, with the reason.
    """

    path: Path
    header: dict[str, Any]
    tokens: Mapping[int, bytes]
    executions: tuple[RecordedExecution, ...]
    torn: int = 0
    skipped: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(SUFFIX)

    def texts(self, ids: Iterable[int]) -> list[str]:
        """The text of each id in its place. A character that several tokens share stands at its last one."""
        return texts_of(self.tokens.get(i, f"<{i}>".encode()) for i in ids)


def texts_of(pieces: Iterable[bytes]) -> list[str]:
    """The text of each token, given the bytes of each. A character that several share stands at its last one."""
    texts, held = [], b""
    for piece in pieces:
        text, held = _whole(held + piece)
        texts.append(text)
    if held:
        texts[-1] += held.decode("utf-8", "replace")
    return texts


_SCALARS = ("task", "reward", "failure", "error", "started", "seconds")
_SAMPLE_SCALARS = ("index", "group_index", "rollout_id", "segment", "status", "reward", "removed")


def _encode(execution: RecordedExecution) -> dict[str, Any]:
    return {
        **{name: getattr(execution, name) for name in _SCALARS},
        "rewards": execution.rewards,
        "spans": execution.spans,
        "counters": dict(execution.counters),
        "engine_errors": execution.engine_errors,
        "earlier": [
            {"ledger": encode_ledger(one.ledger), "error": one.error, "engine_errors": one.engine_errors}
            for one in execution.earlier
        ],
        "row": execution.row,
        "blotted": dict(execution.blotted),
        "samples": [
            {name: getattr(sample, name) for name in _SAMPLE_SCALARS} | {"mask": _runs(sample.mask)}
            for sample in execution.samples
        ],
        "ledger": encode_ledger(execution.ledger),
    }


def _runs(mask: Iterable[int]) -> list[int]:
    """Lengths of the runs of 0 and 1 in turn, beginning with 0."""
    runs = [(value, len(list(run))) for value, run in groupby(mask)]
    return [0] * (bool(runs) and runs[0][0] == 1) + [length for _, length in runs]


def _shown(text: bytes) -> str | list[int]:
    """A token's bytes as JSON: text where they are text, else the bytes as numbers."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return list(text)


def _whole(held: bytes) -> tuple[str, bytes]:
    """Split bytes into whole characters and a rest that may still become one. What never can is replaced."""
    for keep in range(min(3, len(held)) + 1):
        head, rest = held[: len(held) - keep], held[len(held) - keep :]
        try:
            return head.decode("utf-8"), rest
        except UnicodeDecodeError:
            continue
    return held.decode("utf-8", "replace"), b""
