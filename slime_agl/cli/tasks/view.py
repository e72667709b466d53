"""Show tasks, and write their rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from slime_agl.cli.check.view import MARKS
from slime_agl.cli.visible import json_line, safe_text
from slime_agl.harness.harbor import read_task
from slime_agl.harness.validate import Tried


class Progress:
    """Counts tasks that have been tried, on stderr if that is a terminal."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total, self._done, self._quiet = total, 0, quiet
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if not self._quiet:
            self._status = Console(stderr=True).status(self._words())
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, tried: Tried) -> None:
        self._done += 1
        if self._status is not None:
            self._status.update(self._words())

    def _words(self) -> str:
        return f"{self._done} of {self._total} tasks tried"


def print_tasks(tried: Sequence[Tried], *, as_json: bool, listed: bool) -> None:
    """Print a line per task. listed: nothing was run."""
    sound = not any(one.verdict == "fail" for one in tried)
    if as_json:
        sys.stdout.write(json_line({"sound": sound, "tasks": [one.as_dict() for one in tried]}, indent=True))
        return
    table = Table.grid(padding=(0, 1))
    for one in tried:
        mark, style = MARKS[one.verdict]
        scores = "" if one.words or listed else f"solution {one.oracle:g}, nothing {one.empty:g}"
        seconds = "" if listed else f"{one.seconds:.1f} s"
        table.add_row(Text(mark, style), safe_text(one.name), safe_text(one.words or scores), seconds)
    Console().print(table)
    if not listed:
        wrong = sum(one.verdict == "fail" for one in tried)
        Console().print(f"{len(tried) - wrong} of {len(tried)} tasks are sound")


def write_rows(file: Path, folder: Path, read: Sequence[Tried]) -> None:
    """Write a row for each task that can be read: its instruction as the prompt, its path below `folder`."""
    lines = []
    for one in read:
        if one.verdict == "fail":
            continue
        task = read_task(Path(one.path))
        path = task.path.relative_to(folder.resolve()) if task.path != folder.resolve() else Path(".")
        row = {"prompt": task.instruction, "label": task.name, "metadata": {"task": str(path)}}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    file.write_text("".join(lines), encoding="utf-8")
