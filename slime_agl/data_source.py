"""A data source that loses no prompt and gives none twice, wherever a run is cut: for --data-source-path."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections import deque
from pathlib import Path
from typing import Any

from slime_agl.assemble import current
from slime_agl.errors import HostError
from slime_agl.host import RolloutDataSourceWithBuffer, Sample, ensure_reward_post_process

logger = logging.getLogger(__name__)

FORMAT = 1
# Until slime has saved a step it may still ask for it; train_async.py is one step ahead of what it saves.
STEPS_KEPT = 3
_POSITION = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")


class ResumableDataSource(RolloutDataSourceWithBuffer):
    """slime's buffered data source, and the state of the buffer and of all groups that are on their way.

    The state after a step is written when the step's `generate` returns, below `args.save`, before slime
    saves any weights of that step; so whichever checkpoint slime goes on from, its state is there. It
    holds the position in the dataset, the buffer, and the groups that were taken and are in no batch up to
    that step: parked, under way, finished and waiting, or in the batch of a later step. After `load`
    these come out first, oldest first, as they were when they were first given out. A group that was
    dropped for a counted reason, or is in a batch up to that step, does not come back.

    Under another rollout function than slime_agl's nobody says what is on its way: then the state is
    written by `save` alone, and holds position and buffer.

    Names our reward normalisation in args where slime's would mix groups: slime reads that flag after it has
    made the data source.
    """

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self._lock = threading.RLock()
        self._unsaved: deque[int] = deque()
        if ensure_reward_post_process(args):
            logger.info("--custom-reward-post-process-path is set to %s", args.custom_reward_post_process_path)

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        with self._lock:
            return super().get_samples(num_samples)

    def add_samples(self, samples: list[list[Any]]) -> None:
        with self._lock:
            super().add_samples(samples)

    def step_ended(self, rollout_id: int) -> None:
        """Write the state after this step; slime_agl's `generate` calls it before it returns a batch."""
        directory = getattr(self.args, "save", None)
        if not self.args.rollout_global_dataset or directory is None:
            return
        self._write(rollout_id)
        if rollout_id not in self._unsaved:
            self._unsaved.append(rollout_id)
        while len(self._unsaved) > STEPS_KEPT:
            _path(directory, self._unsaved.popleft()).unlink(missing_ok=True)

    def save(self, rollout_id: int) -> None:
        """Keep the state after this step for good, beside the file of slime's own data source."""
        if not self.args.rollout_global_dataset:
            return
        with self._lock:
            super().save(rollout_id)
        if rollout_id in self._unsaved:
            self._unsaved.remove(rollout_id)
        else:
            self._write(rollout_id)

    def load(self, rollout_id: int | None = None) -> None:
        """Go on after this step; without a state of this class, as slime's own data source does.

        Raises:
            HostError: the state cannot be read, or was written for groups of another size.
        """
        directory = getattr(self.args, "load", None)
        if not self.args.rollout_global_dataset or directory is None:
            return
        path = _path(directory, rollout_id)
        if not path.exists():
            super().load(rollout_id)
            return
        state = _read(path, self.args.n_samples_per_prompt)
        with self._lock:
            for name in _POSITION:
                setattr(self, name, state[name])
            self.buffer = [[Sample.from_dict(dict(fields)) for fields in group] for group in state["groups"]]
            if self.dataset is not None and self.args.rollout_shuffle:
                self.dataset.shuffle(self.epoch_id)
        logger.info("%s: %d groups come again, then row %d", path, len(self.buffer), self.sample_offset)

    def _write(self, rollout_id: int) -> None:
        runtime = current()
        with self._lock:
            groups = [*(runtime.outstanding.after(rollout_id) if runtime else ()), *self.buffer]
            state = {name: getattr(self, name) for name in _POSITION}
            state["groups"] = [[sample.to_dict() for sample in group] for group in groups]
            _replace(_path(self.args.save, rollout_id), pickle.dumps({"format": FORMAT, **state}))


def _path(directory: str, rollout_id: int | None) -> Path:
    return Path(directory) / "rollout" / f"resumable_data_source_{rollout_id}.pkl"


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, even when the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _read(path: Path, group_size: int) -> dict[str, Any]:
    try:
        state = pickle.loads(path.read_bytes())
    except (OSError, pickle.UnpicklingError, EOFError, ImportError, AttributeError) as error:
        raise HostError(
            f"{path} cannot be read ({type(error).__name__}: {error}); remove it to go on from slime's own state"
        ) from error
    if state["format"] != FORMAT:
        raise HostError(f"{path} has format {state['format']}, this version reads {FORMAT}; remove it to start afresh")
    sizes = {len(group) for group in state["groups"]}
    if sizes - {group_size}:
        raise HostError(
            f"{path} holds groups of {sorted(sizes)} samples, --n-samples-per-prompt is {group_size}; "
            "go on with the group size the run had"
        )
    return state
