"""The record of a run: one file a step, one line an execution."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import orjson

from slime_agl.errors import ConfigError
from slime_agl.host import Sample
from slime_agl.runtime import Execution
from slime_agl.trace.codec import encode_ledger


class Recorder:
    """Appends executions to `directory/{name}-{step:06d}.jsonl`; does nothing without a directory.

    A line holds the ledger with all ids and logprobs, the reward, the failure and the task; keys
    of attempts are never part of it. Each line is written whole, so that a crash tears at most the last.

    Raises:
        ConfigError: the directory cannot be made or written.
    """

    def __init__(self, directory: str | None, name: str, step: int) -> None:
        self._file: BinaryIO | None = None
        if directory is None:
            return
        path = Path(directory) / f"{name}-{step:06d}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(
                f"agl.record_dir: {path} cannot be written ({error.strerror}); name a writable directory"
            ) from error

    def write(self, execution: Execution, samples: list[Sample]) -> None:
        if self._file is not None:
            self._file.write(orjson.dumps(_record(execution, samples), default=str, option=_OPTIONS) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def _record(execution: Execution, samples: list[Sample]) -> dict[str, Any]:
    return {
        "ledger": encode_ledger(execution.ledger),
        "task": execution.task,
        "reward": samples[0].reward,
        "failure": execution.failure,
        "error": execution.error,
        "seconds": execution.seconds,
        "samples": [
            {"index": s.index, "group_index": s.group_index, "rollout_id": s.rollout_id, "tokens": len(s.tokens),
             "trained": sum(s.loss_mask or ()), "status": s.status.value, "reward": s.reward}
            for s in samples
        ],
    }  # fmt: skip
