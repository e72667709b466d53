"""Load a causal language model of transformers on CPU, and run a forward pass over rows of slots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from slime_agl.errors import ConfigError
from slime_agl.local.engine.kv_slots import RowsView, Shape

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(path: Path, dtype: str = "float32") -> PreTrainedModel:
    """Load weights from a Hugging Face directory, ready for inference.

    Raises:
        ConfigError: an unknown dtype, or a directory without a causal language model.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, known are {', '.join(DTYPES)}")
    try:
        with without_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype])
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be loaded as a causal language model: {error}") from error
    return model.eval()


def use_threads(count: int | None) -> None:
    """Compute with `count` CPU threads; None takes half the cores.

    Agents, gateway and router run beside the model. Its threads synchronise at every layer, so all of them become many
    times slower if one has to share its core.
    """
    torch.set_num_threads(count or max(1, (os.cpu_count() or 2) // 2))


def load_model_and_tokenizer(path: Path, dtype: str = "float32") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return load_model(path, dtype), AutoTokenizer.from_pretrained(path)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Disable transformers' progress bars while it reads or writes weights."""
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()


class LanguageModel:
    """A model with its tokenizer, and their properties that batching needs.

    eos_ids: those of the model's generation config and of the tokenizer. context_length: from the model's config.

    Raises:
        ConfigError: some layer does not cache keys and values of every token (sliding windows, states).
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model
        self.tokenizer = tokenizer
        config = model.config.get_text_config(decoder=True)
        _require_full_attention(config)
        heads = config.num_attention_heads
        self.kv_shape = Shape(
            layers=config.num_hidden_layers,
            heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=model.dtype,
        )
        self.context_length: int = config.max_position_embeddings
        self.vocab_size: int = config.vocab_size
        self.eos_ids = _eos_ids(model, tokenizer)

    @torch.inference_mode()
    def forward(self, tokens: list[list[int]], view: RowsView, positions: torch.Tensor) -> torch.Tensor:
        """Return logits [rows, vocabulary] after the last new token of each row. positions: of the new tokens."""
        output = self.model(
            input_ids=torch.tensor(tokens),
            attention_mask=view.mask(),
            position_ids=positions,
            past_key_values=view,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    @torch.inference_mode()
    def prompt_logprobs(self, ids: list[int], first: int) -> list[float | None]:
        """Return log p of ids[first:], each given all before it; None for the first of them, as SGLang does."""
        kept = len(ids) - first
        logits = self.model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=kept).logits[0].float()
        taken = torch.log_softmax(logits[:-1], dim=-1).gather(
            1, torch.tensor(ids[first + 1 :], dtype=torch.long)[:, None]
        )
        return [None, *taken[:, 0].tolist()]

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Copy weights into the model. Raises ConfigError, changing nothing, if names or shapes differ."""
        own = self.model.state_dict()
        missing, unknown = own.keys() - state.keys(), state.keys() - own.keys()
        if missing or unknown:
            example = sorted(missing or unknown)[0]
            raise ConfigError(
                f"the new weights lack {len(missing)} tensors of the model and have {len(unknown)} unknown ones, "
                f"for example {example}; they belong to another architecture"
            )
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                raise ConfigError(
                    f"{name} is {tuple(state[name].shape)} in the new weights, {tuple(tensor.shape)} here"
                )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    ids: set[int] = set()
    for given in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        ids.update(one for one in (given if isinstance(given, list) else [given]) if isinstance(one, int))
    return frozenset(ids)


def _require_full_attention(config: PretrainedConfig) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"{config.model_type} has layers of kind {', '.join(sorted(kinds))}; the local engine serves models "
            "with full attention in every layer, such as Llama, Qwen2, Qwen3 or SmolLM2"
        )
