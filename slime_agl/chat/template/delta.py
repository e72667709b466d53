"""Compute the tokens between two turns: the ids that extend what the engine was sent and what it sampled."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Protocol

from msgspec import Struct

from slime_agl.chat.template.glue import Glue
from slime_agl.chat.template.messages import Reply
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.seams import Seams
from slime_agl.chat.template.systems import Systems
from slime_agl.chat.template.tail import Continuation, Fork, Method, TakesLong, tail_of
from slime_agl.errors import ConfigError
from slime_agl.trace.turn import Media

HISTORY = ("append", "template")


class Delta(Struct, frozen=True):
    """The ids to append to those of the continued turn. They are glue, never trained.

    media: images among them. rendered: the template was run; else the text was assembled (see `glue`).
    """

    ids: array
    media: Media | None = None
    rendered: bool = True


class Plan(Protocol):
    """The audit's findings on the template. kwargs: template variables of the request."""

    @property
    def closes_turns(self) -> bool:
        """True if the template writes a stop token after an assistant turn; else the next opener is the stop token."""
        ...

    @property
    def systems(self) -> Systems: ...

    def method(self, kind: str, kwargs: Mapping[str, object]) -> Method: ...

    def rewrites(self, kind: str, kwargs: Mapping[str, object], *, reasoning: bool) -> bool:
        """True if the template writes earlier turns differently from how they were sampled."""
        ...


class DeltaEncoder:
    """Extends a turn's ids by the messages that follow it.

    history: 'append' keeps the ids that the model was sent; 'template' forks where the template would rewrite them, so
    that training sees what a stock chat endpoint would send.

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

    def delta(self, c: Continuation, *, quick: bool = False) -> Delta | Fork:
        """Return the ids to append, or the reason why the turn cannot be extended.

        With method 'short' the cost grows with the new messages only; on first use, also with system message and tools.

        Raises:
            TakesLong: `quick` is set, and the real context would have to be rendered or a new shape tried.
        """
        kind = kind_of(c.reply, c.new_messages, prefilled=c.prefill is not None)
        if any(message["role"] == "assistant" for message in c.new_messages):
            return Fork("edited_reply")
        method = self._method(kind, c.kwargs)
        if method == "fork":
            return Fork("unproven")
        if self._history == "template" and self._plan.rewrites(kind, c.kwargs, reasoning=_has_reasoning(c)):
            return Fork("history_rewritten")
        if quick and method == "real":
            raise TakesLong
        ids = self._glue.ids(c, quick=quick) if method == "short" else None
        if ids is not None:
            return Delta(self._splice(ids, c.last_id), rendered=False)
        tail = tail_of(self._renderer, c, method)
        if isinstance(tail, Fork):
            return tail
        dropped = self._seams.fork(c, tail, method)
        if dropped is not None:
            return dropped
        return Delta(self._splice(tail.ids, c.last_id), tail.media)

    def shown(self, messages: Sequence[dict], *, first: bool) -> list[dict]:
        """Return normalised messages with system messages as the template takes them; see `Systems.shown`."""
        return self._plan.systems.shown(messages, first=first)

    def _method(self, kind: str, kwargs: Mapping[str, object]) -> Method:
        """Ask the plan; cache proven kinds without template variables, as the plan's own lookup has to build a key."""
        known = (self._renderer.marker_ids, kind)
        if not kwargs and known in self._short:
            return "short"
        method = self._plan.method(kind, kwargs)
        if method == "short" and not kwargs:
            self._short.add(known)
        return method

    def _splice(self, ids: array, last_id: int | None) -> array:
        """Drop the marker if the model already ended its turn.

        Without a sampled stop id (length, stop string, abort) the marker stays, as glue, and closes the turn.
        """
        # Two families of templates. A closer: every turn ends with a stop id, so any sampled stop id already closed it,
        # and ids[0] would close it twice. An opener (GLM): the stop id opens the next role, so it may only be left out
        # if the model sampled exactly that opener.
        ended = last_id == ids[0] or (self._plan.closes_turns and last_id in self._renderer.marker_ids)
        return ids[1:] if ended else ids


def _has_reasoning(c: Continuation) -> bool:
    return bool(c.reply.reasoning) or any(message.get("reasoning_content") for message in c.context)


def kind_of(reply: Reply, new_messages: Sequence[dict], *, prefilled: bool = False) -> str:
    """Name a continuation by the calls it answers and the roles that follow.

    'user', 'tool', 'parallel_tools', 'tool_then_user', 'call_then_user' (an unanswered call),
    'again' (nothing new), 'user_then_prefill', and so on. Consecutive messages of one role count once.
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
