"""Load tokenizers from a checkpoint directory, a GGUF file or a model name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from slime_agl.chat.template.tokenizer import Tokenizer
from slime_agl.errors import TemplateError

# Sections of multimodal configs that describe the language model.
TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
TURN_OPENER, TURN_CLOSER = "<|im_start|>", "<|im_end|>"


def load_tokenizer(path: str, *, trust_remote_code: bool = True) -> Tokenizer:
    """Load a Hugging Face tokenizer.

    path: a checkpoint directory, a `.gguf` file, a directory with exactly one, or a model name.
    trust_remote_code: allow running its code, and downloading it by name.

    Raises:
        TemplateError: no tokenizer can be loaded from `path`.
    """
    from transformers import AutoTokenizer

    gguf = _gguf_file(Path(path))
    try:
        if gguf is not None:
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        else:
            tokenizer = AutoTokenizer.from_pretrained(
                path, trust_remote_code=trust_remote_code, local_files_only=not trust_remote_code
            )
    except Exception as error:  # transformers raises many kinds, from OSError to those of remote code
        raise TemplateError(
            f"no tokenizer at {path}: give a directory with tokenizer files or a .gguf file "
            f"({type(error).__name__}: {' '.join(str(error).split())})"
        ) from error
    # transformers' own types leave out the special tokens, which its tokenizers make up at run time.
    tokenizer = cast("Tokenizer", tokenizer)
    _close_turns(tokenizer)
    return tokenizer


def stop_ids_of(path: str) -> frozenset[int]:
    """Return the end-of-sequence ids that a checkpoint's generation_config.json names; empty without one.

    Raises:
        TemplateError: the file is not a JSON object.
    """
    file = Path(path) / "generation_config.json"
    if not file.is_file():
        return frozenset()
    try:
        named = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise TemplateError(f"{file} is not a JSON object: {error}") from error
    return frozenset(named if isinstance(named, list) else [] if named is None else [named])


def vocab_size_of(path: str, tokenizer: Tokenizer) -> int:
    """Return the vocabulary size of a checkpoint's model; every id that it can sample is below.

    This is the (padded) size in config.json; for a GGUF file, or without config.json, the tokenizer's largest id + 1.

    Raises:
        TemplateError: the config is not a JSON object.
    """
    config = _config(path)
    parts = [config, *(config.get(name) for name in TEXT_CONFIGS)]
    parts += [part.get("text_config") for part in parts if isinstance(part, dict)]
    sizes = [part.get("vocab_size") for part in parts if isinstance(part, dict)]
    known = [size for size in sizes if type(size) is int and size > 0]
    return max(known or [max(tokenizer.get_vocab().values(), default=-1) + 1])


def _config(path: str) -> dict[str, object]:
    """Read the checkpoint's config.json; {} without one."""
    file = Path(path) / "config.json"
    if not Path(path).exists():
        from transformers.utils.hub import cached_file

        found = cached_file(path, "config.json", _raise_exceptions_for_missing_entries=False)
        if found is None:
            return {}
        file = Path(found)
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TemplateError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise TemplateError(f"{file} is not a JSON object")
    return config


def _gguf_file(path: Path) -> Path | None:
    if path.suffix == ".gguf":
        if not path.is_file():
            raise TemplateError(f"there is no file {path}")
        return path
    if not path.is_dir() or any((path / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise TemplateError(f"{path} contains {len(found)} .gguf files; name one of them: {names}")
    return found[0] if found else None


def _close_turns(tokenizer: Tokenizer) -> None:
    """Set a ChatML tokenizer's end of sequence to the token that closes a turn.

    Some GGUF files name the token that opens one; generation with it would never stop.
    """
    if tokenizer.eos_token == TURN_OPENER and TURN_CLOSER in tokenizer.get_vocab():
        tokenizer.eos_token = TURN_CLOSER
