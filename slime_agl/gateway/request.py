"""What an agent asks of a turn, whatever protocol it speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slime_agl.chat.messages import Reply
from slime_agl.trace.turn import Turn


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request for n turns that continue the same messages.

    messages: as the agent sent them (OpenAI chat shape). tools: the tool list, or None.
    template_kwargs: extra variables for the chat template. max_tokens: None for the trainer's limit.
    sampling: SGLang-named parameters the agent asked for; which of them count is policy.
    constraint: SGLang parameters for structured output. n: how many sibling turns.
    """

    messages: list[dict[str, Any]]
    model: str
    tools: list[dict[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    constraint: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """A committed turn and what it says."""

    turn: Turn
    reply: Reply
    prompt_tokens: int
