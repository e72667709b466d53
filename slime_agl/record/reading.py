"""Read records. They may come from anywhere, so every value is checked, and malformed lines are reported."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import orjson

from slime_agl.errors import EngineFailure, InvariantError, RecordError
from slime_agl.record.blot import BLOTTED_ID
from slime_agl.record.codec import decode_ledger
from slime_agl.record.run import (
    FORMAT,
    READS,
    SUFFIX,
    Record,
    RecordedCredit,
    RecordedExecution,
    RecordedSample,
    Try,
    worker_of,
)
from slime_agl.record.said import decode_said
from slime_agl.record.steps import by_step, listed_some, merged
from slime_agl.record.wire import (
    FLAG,
    INTEGER,
    INTEGER_OR_NONE,
    NUMBER,
    TEXT,
    fields_of,
    listed,
    mapping,
    numbers,
    one_of,
    shallow,
    text,
)
from slime_agl.trace.ledger import Ledger

# A line with routed experts of a 150,000-token context has about 80 MB.
LONGEST_LINE = 1 << 29
TOKENS = range(BLOTTED_ID, 1 << 31)
# Token limit of a Sample that stands in for an execution without tokens.
PLACEHOLDER = 2
MOST_WORKERS = 1_000_000


def read_run(path: Path) -> list[Record]:
    """Read a file, or all files of a directory by step, those of one step as one record.

    Raises:
        RecordError: there is nothing to read, a file is not a record of a supported version, or files of one step are
            not of one run.
    """
    if not path.is_dir():
        return [read_record(path)]
    steps = by_step(path.glob(f"*{SUFFIX}"))
    if not steps:
        raise RecordError(f"{path} holds no *{SUFFIX}; give a directory that was named as agl.record_dir")
    return [_read_step(files) for files in steps]


def _read_step(files: Sequence[Path]) -> Record:
    """Read the files of a step. Without workers that is its own; with them, one that ended early may hold nothing."""
    if len(files) == 1 and worker_of(files[0]) is None:
        own = read_record(files[0])
        return merged([own], {}) if own.workers else own
    parts: list[Record] = []
    unread: dict[Path, str] = {}
    for file in files:
        try:
            parts.append(read_record(file))
        except Headless as error:
            unread[file] = str(error)
    if not parts:
        raise RecordError("; ".join(unread.values()))
    return merged(parts, unread)


class Headless(RecordError):
    """A file without one whole line."""


def read_record(path: Path) -> Record:
    """Read a file. Malformed lines are skipped and listed in the record.

    Raises:
        RecordError: the file cannot be opened, or its first line is not a header.
    """
    with open_record(path) as file:
        lines = _lines(file)
        header = read_header(path, next(lines, (1, b""))[1])
        tokens: dict[int, bytes] = {}
        executions: list[RecordedExecution] = []
        workers: set[int] = set()
        skipped: list[str] = []
        torn = 0
        for number, line in lines:
            if not line.endswith(b"\n"):
                torn = len(line)
                break
            try:
                take_line(line, tokens, executions, workers)
            except MALFORMED as error:
                skipped.append(f"line {number} is skipped ({type(error).__name__}: {error})")
    return Record(
        path=path,
        header=header,
        tokens=tokens,
        executions=tuple(executions),
        torn=torn,
        skipped=listed_some(skipped),
        workers=tuple(sorted(workers)),
    )


def open_record(path: Path) -> BinaryIO:
    """Open a record. Raises RecordError if it cannot be opened, or is not a regular file."""
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except OSError as error:
        nothing = isinstance(error, FileNotFoundError)
        advice = "; give the directory that agl.record_dir names, or --record" if nothing else ""
        raise RecordError(f"{path} cannot be read: {error.strerror}{advice}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise RecordError(f"{path} is not a regular file; give a record, or the directory that holds it")
    return file


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines; of an overlong one only its end."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            line = line[-1:]
        yield number, line


def read_header(path: Path, line: bytes) -> dict[str, object]:
    """The header of a file from its first line.

    Raises:
        Headless: the line is not whole.
        RecordError: it is not the header of a record that this version reads.
    """
    if not line.endswith(b"\n"):
        raise Headless(f"{path} holds no whole line ({len(line)} bytes); the run ended before the header was written")
    try:
        header = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path}, line 1 is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise RecordError(f"{path}, line 1 is a {type(header).__name__}, an object was expected")
    if header.get("format") != FORMAT or header.get("version") not in READS:
        raise RecordError(
            f"{path} has format {str(header.get('format'))[:80]!r} version {str(header.get('version'))[:80]}; "
            f"this version reads {FORMAT!r} versions {', '.join(map(str, READS))}"
        )
    try:
        return _checked(header)
    except ValueError as error:
        raise RecordError(f"{path}, line 1: {error}") from error


def _checked(header: dict[str, object]) -> dict[str, object]:
    """Check the types of the header's known fields."""
    kinds: dict[str, Callable[[object], object]] = {
        "step": lambda value: one_of(value, "step", INTEGER),
        **dict.fromkeys(("name", "agent", "model", "checkpoint"), lambda value: text(value, "a name in the header")),
        "stop_ids": lambda value: [one_of(one, "stop_ids", INTEGER) for one in listed(value, "stop_ids")],
        "context_length": lambda value: one_of(value, "context_length", INTEGER_OR_NONE),
        **dict.fromkeys(
            ("agl", "arguments", "blotted"), lambda value: mapping({} if value is None else value, "header")
        ),
    }
    shallow(header, "the header")
    return header | {name: check(header[name]) for name, check in kinds.items() if name in header}


# What `take_line` raises for a line that is not of a record.
MALFORMED = (LookupError, TypeError, ValueError, OverflowError, RecursionError, InvariantError)


def take_line(line: bytes, tokens: dict[int, bytes], executions: list[RecordedExecution], workers: set[int]) -> None:
    """Add what a line after the header holds. Raises one of MALFORMED if it is not of a record."""
    if line == b"\n":
        raise ValueError(f"it is empty, or has more than {LONGEST_LINE} bytes")
    entry = mapping(orjson.loads(line), "the line")
    if "tokens" in entry:
        pairs = [listed(pair, "tokens") for pair in listed(entry["tokens"], "tokens")]
        tokens.update([(_token(i), _bytes(written)) for i, written in pairs])
    elif "workers" in entry:
        workers.update([_worker(number) for number in listed(entry["workers"], "workers")])
    else:
        executions.append(_execution(mapping(entry["execution"], "execution")))


_SCALARS = {"failure": TEXT, "error": TEXT, "started": NUMBER, "seconds": NUMBER}
_SAMPLE_SCALARS = {
    **dict.fromkeys(("index", "group_index", "rollout_id"), INTEGER_OR_NONE),
    **{"segment": INTEGER, "status": TEXT, "removed": FLAG},
}
_SPAN_SCALARS = {"name": TEXT, "at": NUMBER, "seconds": NUMBER}


def _execution(data: Mapping[str, object]) -> RecordedExecution:
    ledger = decode_ledger(mapping(data["ledger"], "ledger"))
    row = data.get("row")
    longest = PLACEHOLDER + sum(len(turn.new_ids) + turn.output_length for turn in ledger.turns)
    return RecordedExecution(
        ledger=ledger,
        task=shallow(data["task"], "task"),
        reward=shallow(data["reward"], "reward"),
        rewards=tuple(
            (one_of(after, "turns before a reward", INTEGER), numbers(dimensions, "reward"))
            for after, dimensions in (listed(pair, "rewards") for pair in listed(data["rewards"], "rewards"))
        ),
        spans=tuple(_span(span) for span in listed(data["spans"], "spans")),
        counters=_counts(data["counters"], "counters"),
        engine_errors=_failures(data.get("engine_errors", [])),
        earlier=tuple(_try(one) for one in listed(data.get("earlier", []), "earlier")),
        row=None if row is None else mapping(shallow(row, "row"), "row"),
        samples=tuple(_sample(sample, ledger, longest) for sample in listed(data["samples"], "samples")),
        blotted=_counts(data.get("blotted", {}), "blotted"),
        refused=text(data.get("refused", ""), "refused"),
        said=decode_said(data["said"], len(ledger.turns)) if "said" in data else {},
        dataset=text(data.get("dataset", ""), "dataset"),
        unused=text(data.get("unused", ""), "unused"),
        **fields_of(data, _SCALARS),
    )


def _try(data: object) -> Try:
    one = mapping(data, "earlier")
    return Try(
        decode_ledger(mapping(one["ledger"], "ledger")),
        text(one["error"], "error"),
        _failures(one["engine_errors"]),
    )


def _failures(data: object) -> tuple[EngineFailure, ...]:
    return tuple(map(_failure, listed(data, "engine_errors")))


def _failure(data: object) -> EngineFailure:
    if isinstance(data, str):  # older records have the message only
        return EngineFailure(data)
    one = mapping(data, "engine_errors")
    return EngineFailure(text(one["message"], "message"), one_of(one["rejected"], "rejected", (bool,)))


def _span(data: object) -> dict[str, object]:
    attributes = mapping(data, "span")["attributes"]
    return {**fields_of(data, _SPAN_SCALARS), "attributes": mapping(shallow(attributes, "attributes"), "attributes")}


def _sample(data: object, ledger: Ledger, longest: int) -> RecordedSample:
    scalars = fields_of(data, _SAMPLE_SCALARS)
    if scalars["segment"] < 0:
        raise ValueError(f"sample {scalars['index']} is of segment {scalars['segment']}")
    sample = mapping(data, "sample")
    mask = _mask(sample["mask"], longest)
    return RecordedSample(
        **scalars,
        reward=shallow(sample["reward"], "reward"),
        mask=mask,
        credit=tuple(_credit(one, len(mask)) for one in listed(sample.get("credit", []), "credit")),
    )


def _credit(data: object, response: int) -> RecordedCredit:
    start, end, value, reward, state, total = listed(data, "credit")
    credit = RecordedCredit(
        one_of(start, "credit", INTEGER),
        one_of(end, "credit", INTEGER),
        float(one_of(value, "credit", NUMBER)),
        float(one_of(reward, "credit", NUMBER)),
        text(state, "credit"),
        float(one_of(total, "credit", NUMBER)),
    )
    if not 0 <= credit.start < credit.end <= response:
        raise ValueError(f"credit is for tokens {start} to {end} of a response of {response} tokens")
    return credit


def _counts(data: object, name: str) -> dict[str, int]:
    return {key: one_of(value, name, INTEGER) for key, value in mapping(data, name).items()}


def _mask(runs: object, longest: int) -> array:
    lengths = [one_of(length, "mask", INTEGER) for length in listed(runs, "mask")]
    if sum(lengths) > longest or min(lengths, default=0) < 0:
        raise ValueError(f"a mask has {sum(lengths)} entries, its execution can have {longest}")
    mask = array("b")
    for at, length in enumerate(lengths):
        mask.frombytes(bytes([at % 2]) * length)
    return mask


def _token(i: object) -> int:
    token = one_of(i, "token id", INTEGER)
    if token not in TOKENS:
        raise ValueError(f"token id {token} lies outside {TOKENS.start} to {TOKENS.stop - 1}")
    return token


def _worker(number: object) -> int:
    worker = one_of(number, "number of a worker", INTEGER)
    if not 0 <= worker < MOST_WORKERS:
        raise ValueError(f"a worker has number {worker}, it must lie between 0 and {MOST_WORKERS - 1}")
    return worker


def _bytes(written: object) -> bytes:
    if isinstance(written, str):
        return written.encode("utf-8")
    return bytes([one_of(byte, "token text", INTEGER) for byte in listed(written, "token text")])
