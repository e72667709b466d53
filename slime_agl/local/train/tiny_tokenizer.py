"""A tokenizer for `boxes`: one token per word, and one per character of these words.

So a word can be sampled as one token or spelled, while encoding its text gives one token: as with any real tokenizer,
sampled ids need not be the ids that their text encodes to.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from slime_agl.local.train.boxes import BOXES, CALL_CLOSER, CALL_OPENER, CODES, EMPTY

TURN_START, TURN_END, UNKNOWN = "<|im_start|>", "<|im_end|>", "<unk>"
ROLES = ("user\n", "assistant\n", "tool\n")

# Tools are not written: a model of this size knows its only tool from the format it was taught.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{{ '<tool_call>{"name": ' + (function.name | tojson) + ', "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}</tool_call>' -}}
{%- endfor -%}
{{ '<|im_end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer: about 30 tokens. Text outside the task's words becomes `<unk>`."""
    characters = sorted(set("".join((*BOXES, *CODES))))
    vocabulary = {piece: at for at, piece in enumerate((UNKNOWN, *characters))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=True))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (TURN_START, TURN_END)])
    words = (*ROLES, CALL_OPENER, CALL_CLOSER, EMPTY, *BOXES, *CODES)
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in words])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        unk_token=UNKNOWN,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
