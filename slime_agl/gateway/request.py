"""An agent's request for turns, and their answers, independent of protocol."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from slime_agl.chat.template.messages import Reply
from slime_agl.chat.template.tools import Tools
from slime_agl.trace.turn import Turn

ANY_TOOL = "*"
# A chat message in OpenAI's wire shape.
Message = dict[str, Any]


class TurnRequest(Struct, frozen=True, kw_only=True):
    """A request for n sibling turns that continue the same messages.

    messages: the conversation in OpenAI's chat shape. tools: the tool list, or None.
    prompt: text or ids rendered by the agent; sent as they are, without a template.
    add_special_tokens: whether a text `prompt` gets the tokenizer's BOS token.
    template_kwargs: extra variables for the chat template. max_tokens: None for the trainer's limit.
    stop, stop_ids: stop conditions in addition to the trainer's.
    sampling: parameters the agent asked for, in SGLang's names; the sampling policy decides which apply.
    constraint: SGLang parameters for structured output. extra: further fields of the engine request.
    n: number of turns. id_prefix: prefix of the answer's id.
    one_call: the agent accepts at most one tool call. forced: name of the tool to call, ANY_TOOL, or ''.
    return_ids: the agent wants the prompt ids. begun: start of the reply (assistant prefill), not sent back.
    """

    messages: list[Message]
    model: str
    tools: Tools | None = None
    prompt: str | tuple[int, ...] | None = None
    add_special_tokens: bool = True
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    sampling: Mapping[str, object] = field(default_factory=dict)
    constraint: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    id_prefix: str = "chatcmpl-"
    one_call: bool = False
    forced: str = ""
    return_ids: bool = False
    begun: str | None = None


class TurnAnswer(Struct, frozen=True):
    """A committed turn and its parsed reply. prompt_ids: ids of the prompt, if requested."""

    turn: Turn
    reply: Reply
    prompt_tokens: int
    prompt_ids: array | None = None
