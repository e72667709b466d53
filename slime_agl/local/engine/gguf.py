"""Convert a GGUF file to a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PretrainedConfig

from slime_agl.local.engine.model import without_progress_bars


def convert(gguf: Path, target: Path, *, eos_token: str) -> None:
    """Write weights (bfloat16 safetensors), tokenizer with chat template, and generation config into `target`.

    eos_token: the token that ends a turn, also used for padding; GGUF files often name another, or none.
    """
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.eos_token = tokenizer.pad_token = eos_token
    with without_progress_bars():
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        model = type(read)(_plain(read.config))
        model.to(dtype=torch.bfloat16)  # pyright: ignore[reportCallIssue]: decorated
        model.load_state_dict(read.state_dict())
        model.generation_config = GenerationConfig(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _plain(config: PretrainedConfig) -> PretrainedConfig:
    """Return the config without the GGUF loader's quantization record, which a plain directory must not have."""
    values = {
        key: value for key, value in config.to_dict().items() if key not in ("quantization_config", "_name_or_path")
    }
    return type(config)(**values)
