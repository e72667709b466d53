"""Columns of data rows that slime does not read, for the tasks of agents.

slime keeps prompt, label and metadata of a row, and drops the rest. A Sample's row is found again by what is kept;
where that does not tell two rows apart whose columns differ, the run stops instead of guessing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime_agl.errors import ConfigError, closest
from slime_agl.host import RolloutArgs, Sample
from slime_agl.host.dataset import read_rows
from slime_agl.lru import LRU

FOUND = 4096


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows and the keys that slime reads. rewritten: it renders prompts, or adds media to them."""

    path: str
    prompt: str
    label: str | None
    metadata: str
    rewritten: bool


@dataclass(frozen=True, slots=True)
class _Row:
    where: str
    prompt: Any
    metadata: Mapping[str, Any]
    columns: Mapping[str, Any]


class Columns:
    """The columns `names` of the rows of training and evaluation data; the files are read at the first Sample."""

    def __init__(self, names: Sequence[str], files: Sequence[DataFile]) -> None:
        self._names, self._files = tuple(names), tuple(files)
        self._rows: dict[tuple[str, str | None], list[_Row]] | None = None
        self._found: LRU[tuple[str, str], list[_Row]] = LRU(FOUND)

    def of(self, sample: Sample) -> Mapping[str, Any]:
        """Return the columns of a Sample's row; those that the row lacks are absent.

        Raises:
            ConfigError: no row, or several with different columns, can be the Sample's; or no row has a column.
        """
        if self._rows is None:
            self._rows = self._read()
        metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
        rows = [
            row
            for row in self._like(self._rows, sample)
            if all(metadata.get(name) == value for name, value in row.metadata.items())
        ]
        if not rows:
            raise ConfigError(
                f"agl.columns: the row of sample {sample.index} is not in "
                f"{', '.join(file.path for file in self._files)}; move its columns into its metadata, or leave them out"
            )
        other = next((row for row in rows if row.columns != rows[0].columns), None)
        if other is not None:
            raise ConfigError(
                f"agl.columns: {rows[0].where} and {other.where} have the same prompt, label and metadata, but other "
                "columns; give each row an id in its metadata"
            )
        return rows[0].columns

    def _like(self, rows: Mapping[tuple[str, str | None], list[_Row]], sample: Sample) -> list[_Row]:
        """Rows with the label of a Sample, and its prompt or one that may have become its prompt."""
        key = (_key(sample.label), _key(sample.prompt))
        found = self._found.used(key)
        if found is None:
            text = sample.prompt if isinstance(sample.prompt, str) else None
            rewritten = [
                row
                for row in rows.get((key[0], None), ())
                if text is None or not isinstance(row.prompt, str) or row.prompt.strip() in text
            ]
            # A prompt that is part of another's stands in both; the longer one is the Sample's own.
            longest = max((len(row.prompt) for row in rewritten if isinstance(row.prompt, str)), default=0)
            rewritten = [row for row in rewritten if not isinstance(row.prompt, str) or len(row.prompt) == longest]
            found = self._found[key] = [*rows.get(key, ()), *rewritten]
        return found

    def _read(self) -> dict[tuple[str, str | None], list[_Row]]:
        rows: dict[tuple[str, str | None], list[_Row]] = defaultdict(list)
        seen: set[str] = set()
        for file in self._files:
            for number, row in enumerate(read_rows(file.path), 1):
                seen |= row.keys()
                prompt, metadata = row.get(file.prompt), row.get(file.metadata)
                columns = {name: row[name] for name in self._names if name in row}
                label = None if file.label is None else row.get(file.label)
                where = f"row {number} of {file.path}"
                rows[_key(label), None if file.rewritten else _key(prompt)].append(
                    _Row(where, prompt, metadata if isinstance(metadata, dict) else {}, columns)
                )
        if missing := [name for name in self._names if name not in seen]:
            raise ConfigError(
                f"agl.columns names {missing[0]!r}, which no row has.{closest(missing[0], seen)} "
                f"They have: {', '.join(sorted(seen))}"
            )
        return dict(rows)


def data_files(args: RolloutArgs) -> Iterator[DataFile]:
    """The files of rows that slime's arguments name, for training and evaluation."""
    raw = args.raw
    renders = bool(getattr(raw, "apply_chat_template", False) or getattr(raw, "multimodal_keys", None))
    if getattr(raw, "prompt_data", None) is not None:
        yield DataFile(raw.prompt_data, raw.input_key, raw.label_key, raw.metadata_key, renders)
    for one in getattr(raw, "eval_datasets", None) or ():
        own = (one.apply_chat_template, one.multimodal_keys)
        rewritten = renders if own == (None, None) else any(own)
        yield DataFile(one.path, one.input_key, one.label_key, one.metadata_key, rewritten)


def _key(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
