"""Compute the tokens between two turns: the ids that extend what the engine was sent and what it sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from slime_agl.chat.template.glue import Glue
from slime_agl.chat.template.messages import Reply
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.seams import Seams
from slime_agl.chat.template.tail import Continuation, Fork, Mode, Tail, render_whole, tail_of
from slime_agl.errors import ConfigError
from slime_agl.trace.turn import Media

__all__ = [
    "Continuation", "Delta", "DeltaEncoder", "Fork", "Mode", "Plan", "Tail", "kind_of", "render_whole", "tail_of"
]  # fmt: skip

HISTORY = ("append", "template")


@dataclass(frozen=True, slots=True)
class Delta:
    """The ids to append to those of the continued turn. They are glue, never trained.

    media: the images they show. rendered: the template ran for them; else their text was assembled (see `glue`).
    """

    ids: list[int]
    media: Media | None = None
    rendered: bool = True


class Plan(Protocol):
    """The audit's findings about the template. kwargs: template variables of the request."""

    @property
    def closes_turns(self) -> bool:
        """The template writes a stop token after an assistant turn; else the next opener is the stop token."""
        ...

    def mode(self, kind: str, kwargs: Mapping[str, Any]) -> Mode: ...

    def rewrites(self, kind: str, kwargs: Mapping[str, Any], *, reasoning: bool) -> bool:
        """The template shows earlier turns differently from how they were sampled."""
        ...


class DeltaEncoder:
    """Extends a turn's ids by what came after them.

    history: 'append' keeps the ids that the model was sent; 'template' forks where the template would rewrite them, so
    that training sees what a stock chat endpoint sends.

    Raises:
        ConfigError: `history` is neither.
    """

    def __init__(self, renderer: Renderer, plan: Plan, *, history: str = "append") -> None:
        if history not in HISTORY:
            raise ConfigError(f"agl.history is {history!r}; it must be one of {', '.join(HISTORY)}")
        self._renderer = renderer
        self._plan = plan
        self._history = history
        self._glue = Glue(renderer)
        self._seams = Seams(renderer)
        self._short: set[tuple[frozenset[int], str]] = set()

    def delta(self, c: Continuation) -> Delta | Fork:
        """Return the ids to append, or why the turn cannot be extended.

        In context 'short' the cost grows with the new messages only; the first time also with system message and tools.
        """
        kind = kind_of(c.reply, c.new_messages, prefilled=c.prefill is not None)
        if any(message["role"] == "assistant" for message in c.new_messages):
            return Fork("edited_reply")
        mode = self._mode(kind, c.kwargs)
        if mode == "fork":
            return Fork("unproven")
        if self._history == "template" and self._plan.rewrites(kind, c.kwargs, reasoning=_has_reasoning(c)):
            return Fork("history_rewritten")
        ids = self._glue.ids(c) if mode == "short" else None
        if ids is not None:
            return Delta(self._splice(ids, c.last_id), rendered=False)
        tail = tail_of(self._renderer, c, mode)
        if isinstance(tail, Fork):
            return tail
        dropped = self._seams.fork(c, tail, mode)
        if dropped is not None:
            return dropped
        return Delta(self._splice(tail.ids, c.last_id), tail.media)

    def quick(self, c: Continuation) -> bool:
        """Return False if `delta` may take tenths of a second: its shape is new and has to be tried first."""
        return self._glue.knows(c)

    def _mode(self, kind: str, kwargs: Mapping[str, Any]) -> Mode:
        """Ask the plan. The common case, a proven kind without template variables, is cached: the plan builds a key."""
        known = (self._renderer.marker_ids, kind)
        if not kwargs and known in self._short:
            return "short"
        mode = self._plan.mode(kind, kwargs)
        if mode == "short" and not kwargs:
            self._short.add(known)
        return mode

    def _splice(self, ids: list[int], last_id: int | None) -> list[int]:
        """Leave the marker out when the model has already ended its turn.

        Without a sampled stop id (length, stop string, abort) the marker closes the turn for the model, as glue.
        """
        # Two families of templates. A closer: every turn ends with a stop id, so any sampled stop id already closed it,
        # and ids[0] would close it twice. An opener (GLM): the stop id opens the next role, so it may only be left out
        # if the model sampled exactly that opener.
        ended = last_id == ids[0] or (self._plan.closes_turns and last_id in self._renderer.marker_ids)
        return ids[1:] if ended else ids


def _has_reasoning(c: Continuation) -> bool:
    earlier: Any = (message.get("reasoning_content") for message in c.context)
    return bool(c.reply.reasoning) or any(earlier)


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
