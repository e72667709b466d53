"""Data sources; stands in for `slime.rollout.data_source`.

The state file is JSON with a digest, where slime writes a torch file, so that no torch is needed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.host.pieces import resolve
from slime_agl.host.plain import from_plain, to_plain
from slime_agl.host.state_file import read_state, remove_parts, write_state

logger = logging.getLogger(__name__)

_STATE = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")


class RolloutDataSource:
    """Groups of fresh copies of a dataset's samples, epoch after epoch; empty samples without a dataset."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.epoch_id = 0
        self.sample_group_index = 0
        self.sample_index = 0
        self.sample_offset = 0
        self.metadata: dict[str, Any] = {}
        self.dataset = None
        if getattr(args, "save", None) is not None:
            remove_parts(state_paths(args.save, None)[0].parent)
        if args.rollout_global_dataset and args.prompt_data is not None:
            self.dataset = _dataset(args)
            self._shuffle()

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """`num_samples` groups of n_samples_per_prompt samples, numbered in order.

        A dataset smaller than `num_samples` is repeated.
        """
        return [self._group(prompt) for prompt in self._prompts(num_samples)]

    def add_samples(self, samples: list[list[Any]]) -> None:
        raise RuntimeError(
            f"{type(self).__name__} is read-only; --data-source-path must name one with a buffer to put samples back"
        )

    def save(self, rollout_id: int) -> None:
        """Write the position in the dataset below args.save, without any buffer."""
        if not self.args.rollout_global_dataset:
            return
        state = {name: to_plain(getattr(self, name), f"data_source.{name}") for name in _STATE}
        write_state(state_paths(self.args.save, rollout_id)[0], state)

    def load(self, rollout_id: int | None = None) -> None:
        """Continue from the position saved below args.load, if there is one."""
        if not self.args.rollout_global_dataset or self.args.load is None:
            return
        path = state_paths(self.args.load, rollout_id)[0]
        if not path.exists():
            logger.info("no data source state at %s; starting from the first prompt", path)
            return
        state = read_state(path, instead="remove it to start from the first prompt")
        for name in _STATE:
            setattr(self, name, from_plain(state[name]))
        self._shuffle()

    def __len__(self) -> int:
        return 0 if self.dataset is None else len(self.dataset)

    def _shuffle(self) -> None:
        if self.dataset is not None and self.args.rollout_shuffle:
            self.dataset.shuffle(self.epoch_id)

    def _prompts(self, count: int) -> list[Any]:
        if self.dataset is None:
            return [resolve("Sample")() for _ in range(count)]
        prompts: list[Any] = []
        while len(prompts) < count and len(self.dataset):
            if self.sample_offset >= len(self.dataset):
                self.epoch_id += 1
                self.sample_offset = 0
                self._shuffle()
            taken = self.dataset.samples[self.sample_offset : self.sample_offset + count - len(prompts)]
            self.sample_offset += len(taken)
            prompts += taken
        return prompts

    def _group(self, prompt: Any) -> list[Any]:
        group = [copy.deepcopy(prompt) for _ in range(self.args.n_samples_per_prompt)]
        for sample in group:
            sample.group_index = self.sample_group_index
            sample.index = self.sample_index
            self.sample_index += 1
        self.sample_group_index += 1
        return group


class RolloutDataSourceWithBuffer(RolloutDataSource):
    """The same, with a buffer: groups put back come out first."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.buffer: list[list[Any]] = []
        path = args.buffer_filter_path
        self.buffer_filter: Callable[..., list[list[Any]]] = resolve("load_function")(path) if path else pop_first

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        if not self.buffer or not num_samples:
            return super().get_samples(num_samples)
        buffered = self.buffer_filter(self.args, None, self.buffer, num_samples)
        return buffered + super().get_samples(num_samples - len(buffered))

    def add_samples(self, samples: list[list[Any]]) -> None:
        """Put whole groups back.

        Raises:
            AssertionError: an entry is not a list of n_samples_per_prompt samples.
        """
        size = self.args.n_samples_per_prompt
        for at, group in enumerate(samples):
            assert isinstance(group, list), (
                f"group {at} put back is {type(group).__name__}, it must be a list of samples"
            )
            assert len(group) == size, f"group {at} put back has {len(group)} entries, n_samples_per_prompt is {size}"
        self.buffer.extend(samples)

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        self.metadata.update(metadata)

    def get_metadata(self) -> dict[str, Any]:
        return self.metadata

    def get_buffer_length(self) -> int:
        return len(self.buffer)


def pop_first(args: Any, rollout_id: int | None, buffer: list[list[Any]], num_samples: int) -> list[list[Any]]:
    """Buffer filter: remove and return up to `num_samples` of the oldest groups."""
    taken = buffer[:num_samples]
    del buffer[:num_samples]
    return taken


def _dataset(args: Any) -> Any:
    needs_tokenizer = args.apply_chat_template or args.rollout_max_prompt_len is not None
    return resolve("Dataset")(
        args.prompt_data,
        tokenizer=load_tokenizer(args.hf_checkpoint) if needs_tokenizer else None,
        processor=resolve("load_processor")(args.hf_checkpoint, trust_remote_code=True)
        if args.multimodal_keys
        else None,
        max_length=args.rollout_max_prompt_len,
        prompt_key=args.input_key,
        multimodal_keys=args.multimodal_keys,
        label_key=args.label_key,
        metadata_key=args.metadata_key,
        tool_key=args.tool_key,
        apply_chat_template=args.apply_chat_template,
        apply_chat_template_kwargs=args.apply_chat_template_kwargs,
        seed=args.rollout_seed,
    )


def state_paths(directory: str, rollout_id: int | None) -> tuple[Path, Path]:
    """Paths of the state after a step: of this data source, and of slime's own."""
    place = Path(directory) / "rollout"
    return place / f"global_dataset_state_{rollout_id}.json", place / f"global_dataset_state_dict_{rollout_id}.pt"
