"""Render the tail of a continuation: what the template writes from the end of our turn on.

A stand-in that carries a random sentinel takes the place of the continued assistant turn, so nothing that was sampled is
rendered or encoded again. The conversation is rendered once; the text after the sentinel is cut at the first token
that can end a turn. Encoding starts exactly there: no beginning-of-sequence token, prefix space or merge across the
boundary can get in. The text before the cut, the gap, is dropped and must hold nothing of the new messages; `Seams`
proves that.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slime_agl.chat.template.messages import Reply, call_entry
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.tools import Tools
from slime_agl.errors import TemplateError
from slime_agl.trace.turn import Media

Mode = Literal["short", "real", "fork"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
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


@dataclass(frozen=True, slots=True)
class Fork:
    """The turn's ids cannot be extended; the request needs a prompt of its own. reason: snake_case, for metrics."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tail:
    """Text and ids from the end of an assistant turn on. `ids[0]` is the marker, a stop id.

    gap: text between the turn's last word and the marker; it is dropped.
    """

    text: str
    ids: list[int]
    gap: str
    media: Media | None = None


def tail_of(renderer: Renderer, c: Continuation, mode: Mode) -> Tail | Fork:
    """Render `c` around a stand-in and return what follows the assistant turn.

    mode: 'real' renders the whole context; 'short' only its system message and one letter from a user.
    """
    written = written_around(renderer, c, mode)
    return written if isinstance(written, Fork) else _cut(renderer, written[1], c.new_messages)


def written_around(renderer: Renderer, c: Continuation, mode: Mode) -> tuple[str, str] | Fork:
    """Render `c` around a stand-in; return the text before its sentinel and the text after it."""
    context = c.context if mode == "real" else _short(c.context)
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
    renderer: Renderer, messages: list[dict], c: Continuation, kwargs: Mapping[str, Any] | None = None
) -> str:
    """Render messages as the next prompt of `c`: up to the generation prompt, or up to the end of its prefill.

    Raises:
        TemplateError: the template refuses.
    """
    kwargs = c.kwargs if kwargs is None else kwargs
    if c.prefill is None:
        return renderer.render(messages, c.tools, kwargs)
    return renderer.render_open(messages, c.prefill, c.tools, kwargs)


def _cut(renderer: Renderer, text: str, new_messages: Sequence[dict]) -> Tail | Fork:
    gap = gap_of(renderer, text)
    if gap is None:
        return Fork("no_marker")
    # An added token may take the spaces around it along, or be the start of a longer one: then there is no clean cut.
    text = text[len(gap) :]
    ids, media = renderer.shown(text, new_messages)
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
    """Return the stand-ins to try. The second is for templates that leave calls out and keep content only.

    Number, names and ids of the calls stay, as templates match results to them; arguments become `{}`. Only the last
    call carries the sentinel: whatever follows it follows the turn.
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
