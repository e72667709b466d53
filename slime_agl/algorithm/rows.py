"""The Trainer's datasets as files of slime, and back to the agent's tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from slime_agl.errors import ConfigError

TASK = "slime_agl.algorithm.rows.task"
PROMPT_KEYS = ("prompt", "question", "problem", "instruction", "input", "query")


class Rows(Protocol):
    """A dataset of Agent Lightning."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def write_rows(path: Path, rows: Rows, name: str) -> int:
    """Write a dataset as JSON lines, each row whole; returns their number.

    `prompt` of a line is for people who look at records, and for slime's limit on a prompt's length: the row's own
    prompt or question, if it has one.

    Raises:
        ConfigError: the dataset has the wrong type or is empty, or a row has a value that JSON cannot hold, whose
            place is named.
    """
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise ConfigError(f"{name} is a {type(rows).__name__}; a dataset has a length and rows by number, as a list")
    count = len(rows)
    if count == 0:
        raise ConfigError(f"{name} has no rows")
    with path.open("w", encoding="utf-8") as file:
        for index in range(count):
            row = rows[index]
            _require_json(row, f"{name}[{index}]")
            file.write(json.dumps({"prompt": _prompt(row), "metadata": {"task": row}}, ensure_ascii=False) + "\n")
    return count


def task(sample: Any) -> Any:
    """The agent's task of a Sample whose row `write_rows` wrote: slime's `agl.task`."""
    return sample.metadata["task"]


def _prompt(row: Any) -> str:
    if isinstance(row, str):
        return row
    if isinstance(row, dict):
        for key in PROMPT_KEYS:
            if isinstance(row.get(key), str):
                return row[key]
    return json.dumps(row, ensure_ascii=False)


def _require_json(value: Any, where: str) -> None:
    """Raise ConfigError for what would not come back from JSON as it went in."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ConfigError(f"{where} has the key {name!r}, and keys in JSON are text; write it as text")
            _require_json(item, f"{where}[{name!r}]")
    elif type(value) is list:
        for at, item in enumerate(value):
            _require_json(item, f"{where}[{at}]")
    elif value is not None and type(value) not in (str, bool, int, float):
        kind = type(value).__name__
        mend = "make it a list" if isinstance(value, tuple) else "put text, numbers, lists or mappings there"
        raise ConfigError(f"{where} is a {kind}, which JSON does not hold; {mend}, and let the agent load the rest")
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{where} has half a surrogate pair, {value[error.start]!r}, at character {error.start}, which UTF-8 "
                "does not hold; replace it"
            ) from error
    elif isinstance(value, float) and not abs(value) < float("inf"):
        raise ConfigError(f"{where} is {value}, which JSON does not hold")
