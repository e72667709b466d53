"""Follow the files of a run while it writes them, reading each byte once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_agl.errors import RecordError
from slime_agl.record.reading import LONGEST_LINE, MALFORMED, Headless, open_record, read_header, take_line
from slime_agl.record.run import SUFFIX, Record, RecordedExecution, step_of, worker_of
from slime_agl.record.steps import by_step

# Tells a file from one that an earlier run left under the same name: a header begins with the time it was made.
IDENTIFYING = 512

Digest = Callable[[Record, RecordedExecution], Any]


@dataclass(slots=True)
class Tail:
    """A file as far as it has been read. Only `read_on` changes it.

    header: None until it is whole. kept: what `digest` made of each execution, in order. workers: as in Record.
    flaw: why the file is no record, '' if it is one. skipped: number of malformed lines. torn: bytes of an unfinished
    last line. written: when it last grew, seconds since the epoch. bytes_read: in all.
    """

    path: Path
    digest: Digest
    header: dict[str, Any] | None = None
    kept: list[Any] = field(default_factory=list)
    workers: set[int] = field(default_factory=set)
    flaw: str = ""
    skipped: int = 0
    torn: int = 0
    written: float = 0.0
    bytes_read: int = 0
    _offset: int = 0
    _begin: bytes = b""
    _seen: tuple[int, int, int] = (0, 0, 0)

    def read_on(self) -> bool:
        """Read what was added; True if anything changed. An unfinished last line waits for its end."""
        try:
            state = self.path.stat()
        except OSError as error:
            return self._fail(f"{self.path.name} cannot be read: {error.strerror}")
        seen = (state.st_ino, state.st_size, state.st_mtime_ns)
        if seen == self._seen:
            return False
        self._seen, self.written = seen, state.st_mtime
        try:
            self._read()
        except RecordError as error:
            return self._fail(str(error))
        return True

    def _fail(self, flaw: str) -> bool:
        changed, self.flaw = flaw != self.flaw, flaw
        return changed

    def _read(self) -> None:
        with open_record(self.path) as file:
            begin = file.read(IDENTIFYING)
            self.bytes_read += len(begin)
            if not begin.startswith(self._begin) or self._seen[1] < self._offset:
                self._forget()
            self._begin, self.flaw, self.torn = begin, "", 0
            file.seek(self._offset)
            while line := file.readline(LONGEST_LINE):
                self.bytes_read += len(line)
                if not line.endswith(b"\n"):
                    self.torn = len(line)
                    return
                self._offset += len(line)
                self._take(line)

    def _take(self, line: bytes) -> None:
        if self.header is None:
            try:
                self.header = read_header(self.path, line)
            except Headless:  # an empty line; the file is no record
                raise RecordError(f"{self.path} does not begin with a header") from None
            return
        executions: list[RecordedExecution] = []
        try:
            take_line(line, {}, executions, self.workers)
            record = Record(path=self.path, header=self.header, tokens={}, executions=())
            self.kept += [self.digest(record, execution) for execution in executions]
        except (*MALFORMED, RecordError):
            self.skipped += 1

    def _forget(self) -> None:
        self.header, self._offset = None, 0
        self.kept, self.workers, self.skipped = [], set(), 0


@dataclass(frozen=True, slots=True)
class FollowedStep:
    """The files of a step. changed: whether the last `poll` found anything new in them."""

    name: str
    tails: tuple[Tail, ...]
    changed: bool

    @property
    def own(self) -> Tail:
        """The step's own file, or a worker's where it is missing."""
        return self.tails[0]


class Follower:
    """Follows the newest steps of a directory, or one file.

    digest: what to keep of an execution; it may raise RecordError for one that cannot be shown. steps: how many.

    Each `poll` lists the directory and asks for the size of the files of these steps; it reads what was added to them,
    and nothing else.
    """

    def __init__(self, path: Path, digest: Digest, *, steps: int) -> None:
        self._path, self._digest, self._most = path, digest, steps
        self._tails: dict[Path, Tail] = {}
        self._read_before = 0

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""
        return self._read_before + sum(tail.bytes_read for tail in self._tails.values())

    def poll(self) -> list[FollowedStep]:
        """The newest steps, oldest first; those of which no file has a header yet are left out."""
        found, newest = [], self._files()
        self._let_go({file for files in newest for file in files})
        for files in newest:
            tails = [self._tails.setdefault(file, Tail(file, self._digest)) for file in files]
            changed = [tail.read_on() for tail in tails]
            if any(tail.header is not None for tail in tails):
                readable = _of_one_run([tail for tail in tails if tail.header is not None])
                found.append(FollowedStep(self._name(files[0]), tuple(readable), any(changed)))
        return sorted(found, key=_made)

    def flaws(self) -> list[str]:
        """Why files are not shown, and how many lines of others."""
        told = [tail.flaw for tail in self._tails.values() if tail.flaw]
        skipped = [tail for tail in self._tails.values() if tail.skipped]
        return told + [f"{tail.path.name}: {tail.skipped} malformed lines are skipped" for tail in skipped]

    def _name(self, file: Path) -> str:
        return step_of(file) if self._path.is_dir() else file.name.removesuffix(SUFFIX)

    def _let_go(self, kept: set[Path]) -> None:
        for path in [path for path in self._tails if path not in kept]:
            self._read_before += self._tails.pop(path).bytes_read

    def _files(self) -> list[list[Path]]:
        if not self._path.is_dir():
            return [[self._path]] if self._path.exists() else []
        return by_step(self._path.glob(f"*{SUFFIX}"))[-self._most :]


def _made(step: FollowedStep) -> float:
    made = (step.own.header or {}).get("made")
    return float(made) if isinstance(made, int | float) else 0.0


def _of_one_run(tails: list[Tail]) -> list[Tail]:
    """Leave out files that an earlier run left of the step."""
    own = tails[0]
    if worker_of(own.path) is not None:
        return tails
    return [tail for tail in tails if tail is own or (tail.header or {}).get("run") == (own.header or {}).get("run")]
