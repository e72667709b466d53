"""Write rows that slime's data source reads: .jsonl or .parquet. Only the user who writes a file may read it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from slime_agl.errors import ConfigError

KINDS = (".jsonl", ".parquet")


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows to a new file that replaces `path` when it is whole.

    Raises:
        ConfigError: the suffix is neither .jsonl nor .parquet, pyarrow is missing, a column of a parquet file would
            have values of different types, or the file cannot be written.
    """
    if path.suffix not in KINDS:
        raise ConfigError(f"{path} is of kind {path.suffix or 'none'}, it must be one of {', '.join(KINDS)}")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
        (_write_parquet if path.suffix == ".parquet" else _write_jsonl)(part, rows)
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _write_jsonl(part: Path, rows: Sequence[dict[str, Any]]) -> None:
    with part.open("wb") as file:
        for row in rows:
            file.write(orjson.dumps(row) + b"\n")


def _write_parquet(part: Path, rows: Sequence[dict[str, Any]]) -> None:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports] - optional
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError("writing .parquet needs pyarrow: pip install pyarrow, or write .jsonl") from error
    columns = list(dict.fromkeys(name for row in rows for name in row))
    try:
        # From lists of whole columns: a column that only some rows have is null in the others.
        table = pyarrow.table({name: pyarrow.array([row.get(name) for row in rows]) for name in columns})
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise ConfigError(f"the rows do not fit the columns of a parquet file ({error}); write .jsonl") from error
    parquet.write_table(table, part)
