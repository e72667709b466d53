"""The tokens between two turns, without encoding anything that was sampled.

The continued assistant turn is replaced by a stand-in that carries a random sentinel, the
conversation is rendered once, and what follows the sentinel is cut at the first token that can
end a turn. Encoding starts exactly there: no beginning-of-sequence token, no prefix space and
no merge across the boundary can get in.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Protocol

from slime_agl.chat.messages import Reply, call_entry
from slime_agl.chat.prefill import render_open
from slime_agl.chat.renderer import Renderer
from slime_agl.errors import ConfigError, TemplateError
from slime_agl.trace.turn import Media

Mode = Literal["short", "real", "fork"]
HISTORY = ("append", "template")


@dataclass(frozen=True, slots=True)
class Continuation:
    """A request that goes on from a turn of ours.

    context: normalised messages before the continued assistant turn, earlier turns with their reasoning.
    reply: what that turn said. new_messages: normalised messages after it.
    last_id: the last id it sampled, None if it sampled nothing.
    prefill: what the next turn is to begin with, None for a turn of its own words only.
    """

    context: list[dict]
    reply: Reply
    new_messages: list[dict]
    tools: list[dict] | None
    kwargs: dict
    last_id: int | None
    prefill: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """The ids to append to the held ones. They are glue, never trained. media: the images they show."""

    ids: list[int]
    media: Media | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """The held ids cannot be extended; the request needs a prompt of its own. reason: one snake_case word group."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tail:
    """What a template writes from the end of an assistant turn on. `ids[0]` is the marker, a stop id."""

    text: str
    ids: list[int]
    media: Media | None = None


class Plan(Protocol):
    """What the audit found out about the template. kwargs: template variables of the request."""

    @property
    def closes_turns(self) -> bool:
        """The template writes a stop token after an assistant turn; else the next opener is the stop token."""
        ...

    def mode(self, kind: str, kwargs: Mapping[str, Any]) -> Mode: ...

    def rewrites(self, kind: str, kwargs: Mapping[str, Any], *, reasoning: bool) -> bool:
        """The template shows earlier turns differently from how they were sampled."""
        ...


class DeltaEncoder:
    """Extends held ids by what came after them.

    history: 'append' keeps what the model was shown; 'template' forks where the template would
    rewrite it, so that training sees what a stock chat endpoint shows.

    Raises:
        ConfigError: `history` is neither.
    """

    def __init__(self, renderer: Renderer, plan: Plan, *, history: str = "append") -> None:
        if history not in HISTORY:
            raise ConfigError(f"agl.history is {history!r}; it must be one of {', '.join(HISTORY)}")
        self._renderer = renderer
        self._plan = plan
        self._history = history

    def delta(self, c: Continuation) -> Delta | Fork:
        """Return the ids that come after the held ones, or why there are none.

        In mode 'short' the cost grows with the new messages only, and with the system message and tools.
        """
        kind = kind_of(c.reply, c.new_messages, prefilled=c.prefill is not None)
        if any(message["role"] == "assistant" for message in c.new_messages):
            return Fork("edited_reply")
        mode = self._plan.mode(kind, c.kwargs)
        if mode == "fork":
            return Fork("unproven")
        if self._history == "template" and self._plan.rewrites(kind, c.kwargs, reasoning=_has_reasoning(c)):
            return Fork("history_rewritten")
        tail = tail_of(self._renderer, c, mode)
        if isinstance(tail, Fork):
            return tail
        return Delta(self._splice(tail.ids, c.last_id), tail.media)

    def _splice(self, ids: list[int], last_id: int | None) -> list[int]:
        """Leave the marker out when the model has already ended its turn.

        Without a sampled stop id (length, stop string, abort) the marker is written for the model, as glue.
        """
        ended = last_id == ids[0] or (self._plan.closes_turns and last_id in self._renderer.marker_ids)
        return ids[1:] if ended else ids


def kind_of(reply: Reply, new_messages: Sequence[dict], *, prefilled: bool = False) -> str:
    """Name a continuation by what was called and who speaks next.

    'user', 'tool', 'parallel_tools', 'tool_then_user', 'call_then_user' (an unanswered call),
    'again' (nothing new), 'user_then_prefill', and so on. Neighbours of one role count as one.
    """
    roles = [role for role, _ in groupby(message["role"] for message in new_messages)] + ["prefill"] * prefilled
    answered = roles[:1] == ["tool"]
    parallel = len(reply.tool_calls) > 1
    if not reply.tool_calls:
        head = ["stray_tool"] if answered else []
    elif answered:
        head = ["parallel_tools" if parallel else "tool"]
    else:
        head = ["parallel_calls" if parallel else "call"]
    return "_then_".join(head + roles[answered:]) or "again"


def tail_of(renderer: Renderer, c: Continuation, mode: Mode) -> Tail | Fork:
    """Render `c` around a stand-in and return what follows the assistant turn.

    mode: 'real' renders the whole context; 'short' only its system message and one letter from a user.
    """
    context = c.context if mode == "real" else _short(c.context)
    sentinel = "Sntnl" + secrets.token_hex(8)
    fork = Fork("sentinel_lost")
    for stand_in in _stand_ins(c.reply, sentinel):
        try:
            text = render_whole(renderer, [*context, stand_in, *c.new_messages], c)
        except TemplateError:
            return Fork("template_refused")
        if text.count(sentinel) == 1:
            return _cut(renderer, text.partition(sentinel)[2], c.new_messages)
        fork = Fork("sentinel_lost" if sentinel not in text else "sentinel_repeated")
    return fork


def render_whole(
    renderer: Renderer, messages: list[dict], c: Continuation, kwargs: Mapping[str, Any] | None = None
) -> str:
    """Render messages as the next prompt of `c`: up to the generation prompt, or up to the end of its prefill.

    Raises:
        TemplateError: the template refuses.
    """
    kwargs = c.kwargs if kwargs is None else kwargs
    if c.prefill is None:
        return renderer.render(messages, c.tools, kwargs)
    return render_open(renderer, messages, c.prefill, c.tools, kwargs)


def _cut(renderer: Renderer, text: str, new_messages: Sequence[dict]) -> Tail | Fork:
    starts = [at for token in renderer.stop_tokens if (at := text.find(token)) >= 0]
    if not starts:
        return Fork("no_marker")
    text = text[min(starts) :]
    ids, media = renderer.shown(text, new_messages)
    if not ids or ids[0] not in renderer.marker_ids:
        return Fork("marker_merged")
    return Tail(text, ids, media)


def _short(context: Sequence[dict]) -> list[dict]:
    system = [context[0]] if context and context[0]["role"] == "system" else []
    return [*system, {"role": "user", "content": "x"}]


def _stand_ins(reply: Reply, sentinel: str) -> list[dict]:
    """Return the stand-ins to try: a template that shows no calls keeps a sentinel in the content only."""
    if not reply.tool_calls:
        return [{"role": "assistant", "content": sentinel}]
    calls = [call_entry(call.id, call.name, {}) for call in reply.tool_calls]
    *others, last = reply.tool_calls
    marked = [*calls[: len(others)], call_entry(last.id, last.name, {"probe": sentinel})]
    return [
        {"role": "assistant", "content": "", "tool_calls": marked},
        {"role": "assistant", "content": sentinel, "tool_calls": calls},
    ]


def _has_reasoning(c: Continuation) -> bool:
    earlier: Any = (message.get("reasoning_content") for message in c.context)
    return bool(c.reply.reasoning) or any(earlier)
