"""A tokenizer of about 300 tokens, built in code, with a ChatML template that supports tools.

    >>> tokenizer = tiny_tokenizer()
    >>> tokenizer.decode(tokenizer.encode("Grüße, 世界"))
    'Grüße, 世界'
    >>> tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    '<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n'

It is byte-level, so it encodes any text, and has a few merges, so a text has many encodings: a sampled id sequence need
not be the one that `encode` returns.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
MERGES = "h e|t he|i n|e r|a n|r e|o n|e n|n d|o r|e s|i s|a l|s t|o u|l l|Ġ t|Ġ a|Ġ the|e l|el l|ell o|in g"
MODEL_LENGTH = 32768

CHAT_TEMPLATE = """\
{%- macro close() %}{{ '<|im_end|>\\n' }}{% endmacro -%}
{%- set first_is_system = messages and messages[0].role == 'system' -%}
{%- if tools -%}
{{ '<|im_start|>system\\n' }}
{%- if first_is_system -%}{{ messages[0].content + '\\n\\n' }}{%- endif -%}
{{ 'Functions you can call, one JSON signature a line:\\n<tools>' }}
{%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}
{{ '\\n</tools>\\nTo call one, write:\\n<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>' }}
{{- close() -}}
{%- elif first_is_system -%}
{{ '<|im_start|>system\\n' + messages[0].content }}{{- close() -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- elif message.role == 'assistant' -%}
{{ '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content -%}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif -%}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{{ '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + (function.name | tojson) + ', "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- close() -}}
{%- elif message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{ close() }}{%- endif -%}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content }}{{- close() -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Build a new tokenizer, without files or network."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(left, right) for left, _, right in (pair.partition(" ") for pair in MERGES.split("|"))]
    pieces = alphabet + ["".join(pair) for pair in merges]
    backend = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MODEL_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def tool_call_text(name: str, arguments: object) -> str:
    """Return a call as the template renders it, and as a model trained on it writes it."""
    body = f'{{"name": {_plain_json(name)}, "arguments": {_plain_json(arguments)}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


def save_tiny_checkpoint(directory: str | Path) -> Path:
    """Write tokenizer, config.json and generation_config.json, as for `--hf-checkpoint`; return the directory.

    The config is that of a two-layer Llama; there are no weights.

        >>> path = save_tiny_checkpoint("/tmp/tiny")
        >>> (path / "generation_config.json").exists()
        True
    """
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(path)
    stop_ids = [tokenizer.vocab[TURN_END], tokenizer.vocab[END_OF_TEXT]]
    _write(path / "config.json", _model_config(len(tokenizer), stop_ids))
    _write(path / "generation_config.json", {"eos_token_id": stop_ids, "pad_token_id": stop_ids[1], "do_sample": True})
    return path


def _model_config(vocab_size: int, stop_ids: list[int]) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MODEL_LENGTH,
        "eos_token_id": stop_ids,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def _plain_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
