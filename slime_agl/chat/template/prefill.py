"""Prompts that end within an assistant message, which the model is to go on with."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import TemplateError


def render_open(
    renderer: Renderer, messages: Sequence[dict], text: str, tools: list[dict] | None, kwargs: Mapping[str, Any]
) -> str:
    """Render messages and an assistant message that says `text` and is not finished.

    The template writes the message as part of a conversation, so what it puts before the text (an empty
    `<think>` block, say) stands there too; what it puts after the text is cut off.

    Raises:
        TemplateError: the template refuses the messages, or does not write the text exactly once.
    """
    mark = "Mrk" + secrets.token_hex(8)
    opened = {"role": "assistant", "content": text + mark}
    written = renderer.render([*messages, opened], tools, kwargs, generation_prompt=False)
    if written.count(mark) != 1:
        raise TemplateError(
            f"the chat template writes an unfinished assistant message {written.count(mark)} times, not once; "
            "it cannot be continued"
        )
    return written.partition(mark)[0]
