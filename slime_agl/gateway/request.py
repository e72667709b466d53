"""What an agent asks of a turn, whatever protocol it speaks."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slime_agl.chat.template.messages import Reply
from slime_agl.chat.template.tools import Tools
from slime_agl.trace.turn import Turn

ANY_TOOL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One request for n turns that continue the same messages.

    messages: the conversation in OpenAI's chat shape. tools: the tool list, or None.
    prompt: text or ids that the agent made itself, shown as they are; no template is involved then.
    add_special_tokens: whether a `prompt` of text gets the tokenizer's beginning of sequence.
    template_kwargs: extra variables for the chat template. max_tokens: None for the trainer's limit.
    stop, stop_ids: what ends the turn beside the trainer's own stops.
    sampling: SGLang-named parameters the agent asked for; which of them count is policy.
    constraint: SGLang parameters for structured output. extra: further fields of the engine request.
    n: how many sibling turns. id_prefix: how the answer's id begins.
    one_call: the agent takes at most one tool call. forced: '' or the tool that must be called, ANY_TOOL for any.
    return_ids: the agent wants the ids of its prompt. begun: how the answer begins, which the agent is not told again.
    """

    messages: list[dict[str, Any]]
    model: str
    tools: Tools | None = None
    prompt: str | tuple[int, ...] | None = None
    add_special_tokens: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    constraint: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    id_prefix: str = "chatcmpl-"
    one_call: bool = False
    forced: str = ""
    return_ids: bool = False
    begun: str | None = None


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """A committed turn and what it says. prompt_ids: what the engine was shown, if it was asked for."""

    turn: Turn
    reply: Reply
    prompt_tokens: int
    prompt_ids: array | None = None
