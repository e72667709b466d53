"""A data source for --data-source-path that neither loses nor repeats a prompt, wherever a run is interrupted."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slime_agl.errors import HostError
from slime_agl.host import RolloutDataSourceWithBuffer, Sample, ensure_reward_post_process
from slime_agl.host.data_source import state_paths
from slime_agl.host.plain import from_plain, to_plain
from slime_agl.host.state_file import read_state, remove_parts, write_state
from slime_agl.outstanding import Outstanding

__all__ = ["ResumableDataSource"]

logger = logging.getLogger(__name__)

NAME = "resumable_data_source_"
# slime may still ask for a step until it has saved it; train_async.py runs one step ahead of what it saves.
STEPS_KEPT = 3
_POSITION = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")


class ResumableDataSource(RolloutDataSourceWithBuffer):
    """slime's buffered data source, with checkpoints of the buffer and of all active groups.

    The state after a step is written below `args.save` when the step's `generate` returns, before slime saves that
    step's weights; every checkpoint that slime can resume from therefore has its state. It contains the position in the
    dataset, the buffer, and the groups that were taken but are in no batch up to that step: running, parked, finished,
    or in the batch of a later step. After `load` these come out first, oldest first and pristine. Groups that were
    dropped for a counted reason, or are in a batch up to that step, do not come back.

    A damaged state is an error, and so is a missing one beside slime's own: resuming from slime's alone would lose the
    active groups. `agl.resume: position` permits that, for example for a run that started with slime's own data source.
    Unfinished files of killed runs are removed.

    Under a rollout function other than slime_agl's, the active groups are unknown: then only `save` writes the state,
    with position and buffer.

    Also sets slime's reward normalisation flag to ours if slime's would mix groups: slime reads that flag after it has
    made the data source.
    """

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self._lock = threading.RLock()
        self._outstanding = Outstanding()
        self._unsaved: deque[int] = deque(_tidy(getattr(args, "save", None)))
        self._refuse_unwritable_rows()
        if ensure_reward_post_process(args):
            logger.info("--custom-reward-post-process-path is set to %s", args.custom_reward_post_process_path)

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        with self._lock:
            return super().get_samples(num_samples)

    def add_samples(self, samples: list[list[Any]]) -> None:
        with self._lock:
            super().add_samples(samples)

    def step_ended(self, rollout_id: int, outstanding: Outstanding) -> None:
        """Write the state after this step; slime_agl's `generate` calls this before it returns a batch.

        outstanding: the active groups, kept up to date until the next step ends.
        """
        self._outstanding = outstanding
        directory = getattr(self.args, "save", None)
        if not self.args.rollout_global_dataset or directory is None:
            return
        self._write(rollout_id)
        if rollout_id not in self._unsaved:
            self._unsaved.append(rollout_id)
        while len(self._unsaved) > STEPS_KEPT:
            _path(directory, self._unsaved.popleft()).unlink(missing_ok=True)

    def save(self, rollout_id: int) -> None:
        """Keep the state after this step permanently, beside that of slime's own data source."""
        if not self.args.rollout_global_dataset:
            return
        # Written before slime's own state: `load` refuses that one without ours beside it.
        if rollout_id in self._unsaved:
            self._unsaved.remove(rollout_id)
        else:
            self._write(rollout_id)
        with self._lock:
            super().save(rollout_id)

    def load(self, rollout_id: int | None = None) -> None:
        """Resume after this step; without a state of this class, as slime's own data source does.

        Raises:
            HostError: the state is unreadable, damaged or missing, or was written for another group size.
        """
        directory = getattr(self.args, "load", None)
        if not self.args.rollout_global_dataset or directory is None:
            return
        path = _path(directory, rollout_id)
        if rollout_id in self._unsaved:
            self._unsaved.remove(rollout_id)  # the weights of this step are saved, so its state stays
        if not path.exists():
            self._refuse_to_lose_groups(path, directory, rollout_id)
            super().load(rollout_id)
            return
        state = _read(path, self.args.n_samples_per_prompt)
        with self._lock:
            for name in _POSITION:
                setattr(self, name, state[name])
            self.buffer = state["groups"]
            if self.dataset is not None and self.args.rollout_shuffle:
                self.dataset.shuffle(self.epoch_id)
        logger.info("%s: %d groups come again, then row %d", path, len(self.buffer), self.sample_offset)

    def _write(self, rollout_id: int) -> None:
        with self._lock:
            groups = [*self._outstanding.after(rollout_id), *self.buffer]
            state = {name: to_plain(getattr(self, name), f"data_source.{name}") for name in _POSITION}
            state["groups"] = [[_plain(sample) for sample in group] for group in groups]
            write_state(_path(self.args.save, rollout_id), state)

    def _refuse_unwritable_rows(self) -> None:
        """Check that the first row can be written before any engine starts; rows of one file are mostly alike."""
        if self.dataset is not None and len(self.dataset) and getattr(self.args, "save", None) is not None:
            _plain(self.dataset.samples[0])

    def _refuse_to_lose_groups(self, path: Path, directory: str, rollout_id: int | None) -> None:
        section = getattr(self.args, "agl", None)
        if isinstance(section, Mapping) and section.get("resume") == "position":
            return
        instead = (
            "put it back, load a step that has one, or set agl.resume: position to go on from slime's own state "
            "without the groups that were under way"
        )
        if (old := path.with_suffix(".pkl")).exists():
            raise HostError(
                f"{old} is a pickle of an earlier version, which is not read because a pickle can run code; go on with "
                "the version that wrote it, or set agl.resume: position to go on without the groups that were under way"
            )
        if present := [own for own in state_paths(directory, rollout_id) if own.exists()]:
            raise HostError(f"{path} does not exist beside {present[0].name}; {instead}")
        if rollout_id is None or rollout_id < 0:
            return  # nothing has been trained yet
        if others := sorted(_steps(Path(directory))):
            raise HostError(f"{path} does not exist, there are states after steps {_some(others)}; {instead}")
        logger.warning(
            "no state of a data source after step %d below %s: rows are given from the first", rollout_id, directory
        )


def _plain(sample: Any) -> dict[str, Any]:
    where = f"sample {sample.index}"
    return {name: to_plain(value, f"{where}.{name}") for name, value in sample.to_dict().items()}


def _path(directory: str, rollout_id: int | None) -> Path:
    return Path(directory) / "rollout" / f"{NAME}{rollout_id}.jsonl"


def _steps(directory: Path) -> list[int]:
    found = (re.fullmatch(rf"{NAME}(-?\d+)\.jsonl", path.name) for path in (directory / "rollout").glob(f"{NAME}*"))
    return [int(match[1]) for match in found if match]


def _tidy(directory: str | None) -> list[int]:
    """Remove unfinished files; return the steps whose state slime has not saved, oldest first."""
    if directory is None:
        return []
    if removed := remove_parts(Path(directory) / "rollout"):
        logger.info("%d unfinished files of killed runs were removed below %s", removed, directory)
    steps = sorted(_steps(Path(directory)))
    return [step for step in steps if not any(own.exists() for own in state_paths(directory, step))]


def _some(steps: list[int]) -> str:
    return ", ".join(map(str, steps[-5:])) + (f" and {len(steps) - 5} more" if len(steps) > 5 else "")


def _read(path: Path, group_size: int) -> dict[str, Any]:
    instead = "set agl.resume: position and remove it to go on from slime's own state, or load another step"
    plain = read_state(path, instead=instead)
    try:
        state = {name: from_plain(plain[name]) for name in _POSITION}
        groups = [
            [{name: from_plain(value) for name, value in one.items()} for one in group] for group in plain["groups"]
        ]
        state["groups"] = [[Sample.from_dict(fields) for fields in group] for group in groups]
    except (KeyError, TypeError, ValueError, ImportError) as error:
        raise HostError(f"{path} cannot be used ({type(error).__name__}: {error}); {instead}") from error
    sizes = {len(group) for group in state["groups"]}
    if sizes - {group_size}:
        raise HostError(
            f"{path} holds groups of {sorted(sizes)} samples, --n-samples-per-prompt is {group_size}; "
            "go on with the group size the run had"
        )
    return state
