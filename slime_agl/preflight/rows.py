"""Which fields of a data row reach the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from slime_agl.errors import ConfigError, closest
from slime_agl.host.dataset import read_rows
from slime_agl.report.checks import Finding

MOST_ROWS = 100
NAME = "rows reach the agent"


def look_at_rows(
    data: Path, input_key: str, label_key: str | None, task: object, columns: Sequence[str] = ()
) -> Finding:
    """Check that every field of the rows becomes part of the agent's task.

    task, columns: the values of `agl.task` and `agl.columns`.

    Raises:
        ConfigError: the file cannot be read, or has no row.
    """
    try:
        rows = list(islice(read_rows(str(data)), MOST_ROWS))
    except (OSError, ImportError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if not rows:
        raise ConfigError(f'{data} has no row; write a JSON object per line, such as {{"{input_key}": "1 + 2?"}}')
    fields = list(dict.fromkeys(name for row in rows for name in row))
    if input_key not in fields:
        hint = closest(input_key, fields) or " Name the one with the prompt."
        return Finding(NAME, "look", f"no row has {input_key!r} (--input-key); they have {', '.join(fields)}.{hint}")
    if isinstance(task, str):
        return Finding(NAME, "pass", f"{task} makes the tasks")
    keys = (
        list(task)
        if isinstance(task, Mapping)
        else list(dict.fromkeys(["prompt", "label", *_metadata(rows), *columns]))
    )
    words = f"a task has {', '.join(keys)}"
    lost = [name for name in fields if name not in (input_key, label_key, "metadata", *columns)]
    if not lost:
        return Finding(NAME, "pass", words)
    advice = "name in agl.columns what it needs" + (f", or give --label-key {lost[0]}" if label_key is None else "")
    return Finding(NAME, "look", f"{words}; {', '.join(lost)} of the rows reach no agent: {advice}")


def _metadata(rows: list[dict[str, Any]]) -> list[str]:
    return [name for row in rows if isinstance(row.get("metadata"), dict) for name in row["metadata"]]
