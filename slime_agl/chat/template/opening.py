"""How a tool call begins in a template's own syntax: what a call that must be made is started with."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from slime_agl.chat.template.messages import END_THINK, THINK, call_entry
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import TemplateError

ASK = {"role": "user", "content": "x"}


@dataclass(frozen=True, slots=True)
class Opening:
    """text: what comes after the generation prompt; shown to the model, so never trained. call: its part of the call."""

    text: str
    call: str


def call_opening(renderer: Renderer, tools: list[dict], name: str | None, kwargs: Mapping[str, Any]) -> Opening:
    """Return the beginning of a call, up to the tool's name, or through it when `name` is given.

    Reasoning that the generation prompt opens is closed first.

    Raises:
        TemplateError: the template does not show where a call begins.
    """
    asked = renderer.render([ASK], tools, kwargs)
    wanted = name or "Sntnl" + secrets.token_hex(8)
    call = {"role": "assistant", "content": "", "tool_calls": [call_entry("c00000000", wanted, {})]}
    answered = renderer.render([ASK, call], tools, kwargs, generation_prompt=False)
    shared = commonprefix([asked, answered])
    left, written = asked[len(shared) :], answered[len(shared) :]
    before, found, _ = written.partition(wanted)
    if not found or not before.strip() or (left and THINK not in left):
        raise TemplateError("the chat template does not show how a tool call begins, so none can be asked for")
    before += name or ""
    text = f"\n{END_THINK}\n\n{before.lstrip()}" if left else before
    return Opening(text, before.rpartition(END_THINK)[2].lstrip("\n"))
