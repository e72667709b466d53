"""Start a forced tool call in the template's own syntax."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import commonprefix

from slime_agl.chat.template.messages import END_THINK, THINK, call_entry
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import TemplateError

ASK = {"role": "user", "content": "x"}


@dataclass(frozen=True, slots=True)
class Opening:
    """text: appended to the generation prompt, so never trained. call: its part that starts the call."""

    text: str
    call: str


def call_opening(renderer: Renderer, tools: list[dict], name: str | None, kwargs: Mapping[str, object]) -> Opening:
    """Return the start of a call: up to the tool's name, or through it if `name` is given.

    If the generation prompt opens reasoning, that is closed first.

    Raises:
        TemplateError: where a call starts cannot be told from the template's output.
    """
    asked = renderer.render([ASK], tools, kwargs)
    wanted = name or "Sntnl" + secrets.token_hex(8)
    call = {"role": "assistant", "content": "", "tool_calls": [call_entry("c00000000", wanted, {})]}
    answered = renderer.render([ASK, call], tools, kwargs, generation_prompt=False)
    shared = commonprefix([asked, answered])
    left, written = asked[len(shared) :], answered[len(shared) :]
    before, found, _ = written.partition(wanted)
    if not found or not before.strip() or (left and THINK not in left):
        raise TemplateError(
            "the chat template's output does not tell how a tool call begins, so no call can be forced; "
            "use tool_choice auto"
        )
    before += name or ""
    text = f"\n{END_THINK}\n\n{before.lstrip()}" if left else before
    return Opening(text, before.rpartition(END_THINK)[2].lstrip("\n"))
