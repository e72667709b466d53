"""The number of ids that a checkpoint's model can sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime_agl.chat.template.loader import vocab_size_of
from slime_agl.errors import TemplateError
from slime_agl.testing.tokenizer import tiny_tokenizer

PADDED = 151936


@pytest.mark.parametrize(
    "config",
    [
        {"vocab_size": PADDED},
        {"model_type": "vl", "text_config": {"vocab_size": PADDED}},
        {"vocab_size": 32000, "text_config": {"vocab_size": PADDED}},
        {"thinker_config": {"text_config": {"vocab_size": PADDED}}},
        {"llm_config": {"vocab_size": PADDED}, "vision_config": {"vocab_size": 10**6}},
    ],
)
def test_the_padded_vocabulary_of_the_config_counts(tmp_path: Path, config: dict[str, Any]):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vocab_size_of(str(tmp_path), tiny_tokenizer()) == PADDED


@pytest.mark.parametrize("config", [None, {}, {"vocab_size": None}, {"vocab_size": "many"}, {"vocab_size": True}])
def test_without_one_the_tokenizers_counts(tmp_path: Path, config: dict[str, Any] | None):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = tiny_tokenizer()
    assert vocab_size_of(str(tmp_path), tokenizer) == max(tokenizer.get_vocab().values()) + 1


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_config_that_is_none_is_named(tmp_path: Path, text: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(TemplateError, match="config.json is not"):
        vocab_size_of(str(tmp_path), tiny_tokenizer())
