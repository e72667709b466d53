"""A small vision processor: transformers' own for LLaVA, with a vocabulary and sizes that fit a test."""

from __future__ import annotations

from typing import Any

from slime_agl.testing import tiny_tokenizer

TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}{{ message.content }}{%- else -%}
{%- for part in message.content -%}{{ '<image>' if part.type == 'image' else part.text }}{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"""
PATCHES = 4  # 28 x 28 pixels, patches of 14


def processor() -> Any:
    """Each image becomes PATCHES tokens `<image>`; its tensor is `pixel_values`."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava.processing_llava import LlavaProcessor

    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(**size),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
