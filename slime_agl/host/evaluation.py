"""Prompts and results of an evaluation, in the shapes of slime's own."""

from __future__ import annotations

import copy
import json
from typing import Any

from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.host.args import RolloutArgs
from slime_agl.host.pieces import resolve


class EvalPrompts:
    """Owns the evaluation datasets of a process; reads each file once.

    tokenizer: the checkpoint's, if already loaded; otherwise loaded once a dataset needs it.
    """

    def __init__(self, args: RolloutArgs, tokenizer: Any = None) -> None:
        self._args = args
        self._tokenizer = tokenizer
        self._datasets: dict[str, Any] = {}

    def samples(self, config: Any) -> list[Any]:
        """Fresh samples of an EvalDatasetConfig: n_samples_per_eval_prompt in a row per prompt.

        The seed offset of sample i is i % n_samples_per_eval_prompt. Sets index, metadata and the dataset's own
        function paths.
        """
        samples = []
        for prompt in self._dataset(config).samples:
            for _ in range(config.n_samples_per_eval_prompt):
                sample = copy.deepcopy(prompt)
                sample.index = len(samples)
                sample.metadata = config.inject_metadata(sample.metadata)
                sample.custom_rm_path = config.custom_rm_path
                sample.generate_function_path = config.custom_generate_function_path
                samples.append(sample)
        return samples

    def _dataset(self, config: Any) -> Any:
        raw = self._args.raw
        chosen = {
            name: getattr(raw, name, None) if getattr(config, name) is None else getattr(config, name)
            for name in ("multimodal_keys", "apply_chat_template", "apply_chat_template_kwargs")
        }
        key = json.dumps([config.cache_key, chosen], sort_keys=True)
        if key not in self._datasets:
            needs_processor = chosen["multimodal_keys"] is not None
            self._datasets[key] = resolve("Dataset")(
                path=config.path,
                tokenizer=self._loaded_tokenizer(bool(chosen["apply_chat_template"])),
                processor=self._processor() if needs_processor else None,
                max_length=self._args.eval_max_prompt_len,
                prompt_key=config.input_key,
                label_key=config.label_key,
                metadata_key=config.metadata_key,
                tool_key=config.tool_key,
                **chosen,
            )
        return self._datasets[key]

    def _loaded_tokenizer(self, renders: bool) -> Any:
        if self._tokenizer is None and (renders or self._args.eval_max_prompt_len is not None):
            self._tokenizer = load_tokenizer(str(self._args.hf_checkpoint))
        return self._tokenizer

    def _processor(self) -> Any:
        return resolve("load_processor")(self._args.hf_checkpoint, trust_remote_code=True)


def eval_entry(args: RolloutArgs, samples: list[Any]) -> dict[str, list[Any]]:
    """Make a dataset's value in RolloutFnEvalOutput.data, ordered by sample index.

    Raises:
        KeyError, TypeError: a reward lacks --eval-reward-key, or is not a mapping although the key is set.
    """
    ordered = sorted(samples, key=lambda sample: sample.index)
    key = args.eval_reward_key
    truncated = resolve("Sample").Status.TRUNCATED
    return {
        "rewards": [sample.reward[key] if key else sample.reward for sample in ordered],
        "truncated": [sample.status == truncated for sample in ordered],
        "samples": ordered,
    }
