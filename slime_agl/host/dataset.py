"""Prompts from a file; stands in for `slime.utils.data.Dataset`."""

from __future__ import annotations

import itertools
import json
import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slime_agl.errors import ConfigError, closest
from slime_agl.host.pieces import resolve

logger = logging.getLogger(__name__)

_SLICED = re.compile(r"(?P<path>.*)@\[(?P<start>-?\d*):(?P<end>-?\d*)\]")


def load_processor(name_or_path: str, **kwargs: Any) -> None:
    """Return None: image processors need slime."""


def read_rows(path: str) -> Iterator[dict[str, Any]]:
    """Rows of a .jsonl or .parquet file, in order; `file@[a:b]` selects rows like a Python slice.

    A line that is not JSON is skipped with a warning.

    Raises:
        FileNotFoundError, ValueError, ImportError: the file is missing, its format is unknown, pyarrow is missing.
    """
    match = _SLICED.fullmatch(path)
    file = Path(match["path"] if match else path)
    readers = {".jsonl": _jsonl, ".parquet": _parquet}
    if not file.exists():
        raise FileNotFoundError(f"prompt data {file} does not exist; check --prompt-data or --eval-prompt-data")
    if file.suffix not in readers:
        raise ValueError(
            f"prompt data {file} is of kind {file.suffix or 'none'}, it must be one of {', '.join(readers)}"
        )
    rows = readers[file.suffix](file)
    if match is None:
        return rows
    start, end = (int(bound) if bound else None for bound in (match["start"], match["end"]))
    if (start or 0) < 0 or (end or 0) < 0:
        return iter(list(rows)[start:end])
    return itertools.islice(rows, start, end)


class Dataset:
    """The samples of a file, in file order until `shuffle`.

    Args:
        path: see `read_rows`. tokenizer: needed only for apply_chat_template and max_length.
        processor: must be None; multimodal data needs slime.
        max_length: drop prompts with more tokens; None keeps all. Prompts that are messages are not measured.
        label_key, metadata_key, tool_key: row keys of the label, the metadata, and tools, which join the metadata.

    Raises:
        ConfigError: a row lacks the label, its tools are not a list, or multimodal data is requested.
    """

    def __init__(
        self,
        path: str,
        tokenizer: Any,
        processor: Any,
        max_length: int | None,
        *,
        prompt_key: str = "text",
        multimodal_keys: dict[str, str] | None = None,
        label_key: str | None = None,
        tool_key: str | None = None,
        metadata_key: str = "metadata",
        seed: int = 42,
        apply_chat_template: bool = False,
        apply_chat_template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if multimodal_keys or processor is not None:
            raise ConfigError(
                "multimodal prompt data needs slime on PYTHONPATH; unset --multimodal-keys or install slime"
            )
        sample_class = resolve("Sample")
        samples = []
        for number, row in enumerate(read_rows(path), 1):
            where = f"row {number} of {path}"
            metadata = row.get(metadata_key) or {}
            tools = _tools(row, tool_key, where)
            if tools is not None:
                metadata["tools"] = tools
            prompt = row.get(prompt_key)
            if apply_chat_template:
                messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
                prompt = tokenizer.apply_chat_template(
                    messages,
                    tools=tools,
                    tokenize=False,
                    add_generation_prompt=True,
                    **(apply_chat_template_kwargs or {}),
                )
            samples.append(sample_class(prompt=prompt, label=_label(row, label_key, where), metadata=metadata))
        self.origin_samples = samples if max_length is None else _short(samples, tokenizer, max_length)
        self.samples = self.origin_samples
        self.epoch_id = -1
        self.seed = seed

    def shuffle(self, new_epoch_id: int) -> None:
        """Put the samples in the order of an epoch, which depends only on seed and epoch."""
        if self.epoch_id == new_epoch_id:
            return
        order = list(range(len(self.samples)))
        random.Random(self.seed + new_epoch_id).shuffle(order)
        self.samples = [self.origin_samples[at] for at in order]
        self.epoch_id = new_epoch_id

    def __getitem__(self, idx: Any) -> Any:
        return self.samples[idx]

    def __len__(self) -> int:
        return len(self.samples)


def _jsonl(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                logger.warning("line %d of %s is not JSON and is skipped: %s", number, file, error)
                continue
            if not isinstance(row, dict):
                raise ConfigError(f"line {number} of {file} is a {type(row).__name__}; a row must be a JSON object")
            yield row


def _parquet(file: Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports] - optional
    except ImportError as error:
        raise ImportError(f"{file} is a parquet file; install pyarrow to read it, or use .jsonl") from error
    for batch in parquet.ParquetFile(file).iter_batches():
        yield from batch.to_pylist()


def _label(row: dict[str, Any], key: str | None, where: str) -> Any:
    if key is None:
        return None
    if key not in row:
        raise ConfigError(f"{where} has no {key!r} (--label-key); it has {', '.join(row)}.{closest(key, row)}")
    return row[key]


def _tools(row: dict[str, Any], key: str | None, where: str) -> list[Any] | None:
    if key is None or key not in row:
        return None
    tools = json.loads(row[key]) if isinstance(row[key], str) else row[key]
    if not isinstance(tools, list):
        raise ConfigError(f"{where}: {key!r} (--tool-key) is {type(tools).__name__}, it must be a list of tools")
    return tools


def _short(samples: list[Any], tokenizer: Any, max_length: int) -> list[Any]:
    if samples and not isinstance(samples[0].prompt, str):
        logger.warning("prompts are messages, so their length is not checked against %d tokens", max_length)
        return samples
    if not samples:
        return samples
    lengths = [
        len(ids) for ids in tokenizer([sample.prompt for sample in samples], add_special_tokens=False)["input_ids"]
    ]
    kept = [sample for sample, length in zip(samples, lengths, strict=True) if length <= max_length]
    logger.info(
        "%d of %d prompts are longer than %d tokens and left out", len(samples) - len(kept), len(samples), max_length
    )
    return kept
