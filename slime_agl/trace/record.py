"""The record of a run: one append-only file a step, read back whole or after a crash.

A file is JSON lines. The first says what follows: format, version, step, model, settings. Then come `tokens`
lines, each with the texts of ids that stand in the file for the first time, and `execution` lines.
A line is written in one piece, so that a crash tears at most the last one; reading skips it.
Keys (`sk-...`) that an agent left in its task, its spans or its traceback are blotted out.
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from slime_agl.errors import ConfigError, RecordError
from slime_agl.trace.codec import decode_ledger, encode_ledger
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import Segment, segments

FORMAT, SUFFIX = "slime_agl.record", ".jsonl"
# Version 2 adds what a replay needs: settings in the header; row, engine_errors and earlier tries of an execution.
VERSION, READS = 2, (1, 2)
_SECRET = re.compile(rb"sk-[A-Za-z0-9_-]{16,}")
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY

TokenBytes = Callable[[Sequence[int]], list[bytes]]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class RecordedExecution:
    """One execution: its tokens, and what came of it.

    task: what the agent was given. reward: of the execution; rewards: (number of turns before it,
    dimensions) in the order they were given. spans: light ones, as plain data. failure: '' or the boundary that broke,
    error: the traceback. started: seconds since the epoch. counters: what the gateway counted.
    engine_errors: as in Try. earlier: the tries before the one that all this is about.
    row: prompt, label, metadata and custom_rm_path of the Sample that it was made of, where `task` does not tell them.
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
        self._known: set[int] = set()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(
                f"agl.record_dir: {path} cannot be written ({error.strerror}); name a writable directory"
            ) from error
        self._append({"format": FORMAT, "version": VERSION, "made": time.time(), **header})

    def write(self, execution: RecordedExecution) -> None:
        new = sorted(execution.ids() - self._known)
        if new:
            self._known.update(new)
            self._append({"tokens": [[i, _shown(text)] for i, text in zip(new, self._token_bytes(new), strict=True)]})
        self._append({"execution": _encode(execution)})

    def close(self) -> None:
        self._file.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        text = orjson.dumps(line, default=str, option=_OPTIONS)
        self._file.write(_SECRET.sub(b"sk-***", text) + b"\n")


@dataclass(frozen=True, slots=True)
class Record:
    """One file, read. tokens: id -> bytes of its text. torn: bytes of an unfinished last line that were skipped."""

    path: Path
    header: dict[str, Any]
    tokens: Mapping[int, bytes]
    executions: tuple[RecordedExecution, ...]
    torn: int = 0

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


def read_run(path: Path) -> list[Record]:
    """Read one file, or every file of a directory, in order of their names.

    Raises:
        RecordError: there is nothing to read, or a file is no record of a version this one reads.
    """
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise RecordError(f"{path} holds no *{SUFFIX}; give a directory that was named as agl.record_dir")
    return [read_record(file) for file in files]


def read_record(path: Path) -> Record:
    """Read one file. Raises RecordError, naming the line, when it is no record."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    *lines, torn = data.split(b"\n")
    if not lines:
        raise RecordError(f"{path} holds no whole line ({len(torn)} bytes); the run ended before it was begun")
    header = _line(path, 1, lines[0])
    if header.get("format") != FORMAT or header.get("version") not in READS:
        raise RecordError(
            f"{path} has format {header.get('format')!r} version {header.get('version')!r}; "
            f"this version reads {FORMAT!r} versions {' and '.join(map(str, READS))}"
        )
    tokens: dict[int, bytes] = {}
    executions = []
    for number, line in enumerate(lines[1:], 2):
        entry = _line(path, number, line)
        try:
            if "tokens" in entry:
                tokens.update((i, _bytes(shown)) for i, shown in entry["tokens"])
            else:
                executions.append(_decode(entry["execution"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{path}, line {number}: {type(error).__name__}: {error}") from error
    return Record(path, header, tokens, tuple(executions), len(torn))


def _line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise RecordError(f"{path}, line {number} is a {type(entry).__name__}, an object was expected")
    return entry


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
        "samples": [
            {name: getattr(sample, name) for name in _SAMPLE_SCALARS} | {"mask": _runs(sample.mask)}
            for sample in execution.samples
        ],
        "ledger": encode_ledger(execution.ledger),
    }


def _decode(data: Mapping[str, Any]) -> RecordedExecution:
    return RecordedExecution(
        ledger=decode_ledger(data["ledger"]),
        rewards=tuple((after, dimensions) for after, dimensions in data["rewards"]),
        spans=tuple(data["spans"]),
        counters=data["counters"],
        engine_errors=tuple(data.get("engine_errors", ())),
        earlier=tuple(
            Try(decode_ledger(one["ledger"]), one["error"], tuple(one["engine_errors"]))
            for one in data.get("earlier", ())
        ),
        row=data.get("row"),
        samples=tuple(
            RecordedSample(**{name: sample[name] for name in _SAMPLE_SCALARS}, mask=_mask(sample["mask"]))
            for sample in data["samples"]
        ),
        **{name: data[name] for name in _SCALARS},
    )


def _runs(mask: Iterable[int]) -> list[int]:
    """Lengths of the runs of 0 and 1 in turn, beginning with 0."""
    runs = [(value, len(list(run))) for value, run in groupby(mask)]
    return [0] * (bool(runs) and runs[0][0] == 1) + [length for _, length in runs]


def _mask(runs: Sequence[int]) -> array:
    mask = array("b")
    for at, length in enumerate(runs):
        mask.extend([at % 2] * length)
    return mask


def _shown(text: bytes) -> str | list[int]:
    """A token's bytes as JSON: text where they are text, else the bytes as numbers."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return list(text)


def _bytes(shown: str | list[int]) -> bytes:
    return shown.encode("utf-8") if isinstance(shown, str) else bytes(shown)


def _whole(held: bytes) -> tuple[str, bytes]:
    """Split bytes into whole characters and a rest that may still become one. What never can is replaced."""
    for keep in range(min(3, len(held)) + 1):
        head, rest = held[: len(held) - keep], held[len(held) - keep :]
        try:
            return head.decode("utf-8"), rest
        except UnicodeDecodeError:
            continue
    return held.decode("utf-8", "replace"), b""
