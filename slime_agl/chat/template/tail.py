"""Render the tail of a continuation: the text that the template writes after our turn.

A stand-in with a random sentinel replaces the continued assistant turn, so nothing that was sampled is rendered or
encoded again. The conversation is rendered once; the text after the sentinel is cut at the first token that can end a
turn. Encoding starts exactly there, which rules out a beginning-of-sequence token, a prefix space, or a merge across
the boundary. The text before the cut, the gap, is dropped and must contain nothing of the new messages; `Seams` proves
that.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from slime_agl.chat.template.messages import Reply, call_entry
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.tools import Tools
from slime_agl.errors import SlimeAglError, TemplateError
from slime_agl.trace.turn import Media

Method = Literal["short", "real", "fork"]
"""How to make the tokens of a continuation: render it after a short context or the real one, or fork."""


class TakesLong(SlimeAglError):
    """Making a continuation would block the event loop for too long, up to a few tenths of a second."""

    boundary = "chat"


class Continuation(Struct, frozen=True, kw_only=True):
    """A request that continues one of our turns.

    context: normalised messages before the continued assistant turn, earlier turns with their reasoning.
    reply: the continued turn, parsed. new_messages: normalised messages after it.
    last_id: the last id it sampled, None if it sampled nothing.
    prefill: assistant prefill, the text that the next turn starts with; None without one.
    """

    context: Sequence[dict]
    reply: Reply
    new_messages: list[dict]
    tools: Tools | None
    kwargs: dict
    last_id: int | None
    prefill: str | None = None


class Fork(Struct, frozen=True):
    """The turn's ids cannot be extended; the request gets a new prompt. reason: snake_case, for metrics."""

    reason: str


class Tail(Struct, frozen=True):
    """Text and ids that follow an assistant turn. `ids[0]` is the marker, a stop id.

    gap: the dropped text between the turn's last word and the marker.
    """

    text: str
    ids: array
    gap: str
    media: Media | None = None


def tail_of(renderer: Renderer, c: Continuation, method: Method) -> Tail | Fork:
    """Render `c` around a stand-in and return the text and ids that follow the assistant turn.

    method: 'real' renders the whole context; 'short' only its system message and a one-character user message.
    """
    written = written_around(renderer, c, method)
    return written if isinstance(written, Fork) else _cut(renderer, written[1], c.new_messages)


def written_around(renderer: Renderer, c: Continuation, method: Method) -> tuple[str, str] | Fork:
    """Render `c` around a stand-in; return the text before its sentinel and the text after it."""
    context = c.context if method == "real" else _short(c.context)
    sentinel = "Sntnl" + secrets.token_hex(8)
    fork = Fork("sentinel_lost")
    for stand_in in _stand_ins(c.reply, sentinel):
        try:
            text = render_whole(renderer, [*context, stand_in, *c.new_messages], c)
        except TemplateError:
            return Fork("template_refused")
        if text.count(sentinel) == 1:
            before, _, after = text.partition(sentinel)
            return before, after
        fork = Fork("sentinel_lost" if sentinel not in text else "sentinel_repeated")
    return fork


def render_whole(
    renderer: Renderer, messages: list[dict], c: Continuation, kwargs: Mapping[str, object] | None = None
) -> str:
    """Render messages as the next prompt of `c`, through the generation prompt or the prefill.

    Raises:
        TemplateError: the template refuses them.
    """
    kwargs = c.kwargs if kwargs is None else kwargs
    if c.prefill is None:
        return renderer.render(messages, c.tools, kwargs)
    return renderer.render_open(messages, c.prefill, c.tools, kwargs)


def _cut(renderer: Renderer, text: str, new_messages: Sequence[dict]) -> Tail | Fork:
    gap = gap_of(renderer, text)
    if gap is None:
        return Fork("no_marker")
    # An added token may absorb the spaces around it or start a longer one: then there is no clean cut.
    text = text[len(gap) :]
    ids, media = renderer.encode_with_images(text, new_messages)
    if not ids or ids[0] not in renderer.marker_ids:
        return Fork("marker_merged")
    return Tail(text, ids, gap, media)


def gap_of(renderer: Renderer, text: str) -> str | None:
    """Return the text before the first stop token, or None if there is no stop token."""
    starts = [at for token in renderer.stop_tokens if (at := text.find(token)) >= 0]
    return text[: min(starts)] if starts else None


def _short(context: Sequence[dict]) -> list[dict]:
    system = [context[0]] if context and context[0]["role"] == "system" else []
    return [*system, {"role": "user", "content": "x"}]


def _stand_ins(reply: Reply, sentinel: str) -> list[dict]:
    """Return the stand-ins to try. The second serves templates that write content and no calls.

    The calls keep their number, names and ids, as templates match results to them; arguments become `{}`. Only the last
    call carries the sentinel, so the text after it follows the turn.
    """
    if not reply.tool_calls:
        return [{"role": "assistant", "content": sentinel}]
    calls = [call_entry(call.id, call.name, {}) for call in reply.tool_calls]
    *others, last = reply.tool_calls
    marked = [*calls[: len(others)], call_entry(last.id, last.name, {"probe": sentinel})]
    return [
        {"role": "assistant", "content": "", "tool_calls": marked},
        {"role": "assistant", "content": sentinel, "tool_calls": calls},
    ]
