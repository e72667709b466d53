"""Prove that the cut before a tail drops nothing of the new messages.

The cut is at the first stop token after the continued turn. If the list of stop tokens is incomplete, that token can
come after a tool result, which the model would then never see. So the dropped text must be the template's own: it must
not change with the new messages, and none of their contents may occur in it or before it.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Sequence

import orjson
from msgspec.structs import replace

from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.tail import Continuation, Fork, Method, Tail, gap_of, written_around
from slime_agl.lru import LRU

BEHIND, ELSEWHERE = "stop_token_behind", "shown_elsewhere"
CACHED, LONGEST_CACHED = 1024, 4096


class Seams:
    """Caches which gaps of one renderer's tails are proven free of new messages. Thread-safe.

    A known gap costs one lookup; a new one costs a render with marks in place of the new contents.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._cached: LRU[Hashable, tuple[Fork | None]] = LRU(CACHED)

    def fork(self, c: Continuation, tail: Tail, method: Method) -> Fork | None:
        """Return the reason why `tail` must not be used, or None if it contains everything new."""
        key = self._key(c, tail, method)
        cached = self._cached.get(key)
        if cached is not None:
            return cached[0]
        found = self._find(c, tail, method)
        if len(tail.gap) <= LONGEST_CACHED:
            self._cached[key] = (found,)
        return found

    def _key(self, c: Continuation, tail: Tail, method: Method) -> Hashable:
        gap = tail.gap
        for call in c.reply.tool_calls:
            # Call ids are new in every turn, and some templates write them after a call's arguments: with them in
            # the key, no lookup would ever hit.
            gap = gap.replace(call.id, "\0") if call.id else gap
        kwargs = orjson.dumps(c.kwargs, option=orjson.OPT_SORT_KEYS) if c.kwargs else b""
        roles = tuple(message["role"] for message in c.new_messages)
        return gap, roles, len(c.reply.tool_calls), method, kwargs, c.prefill is None, self._renderer.stop_tokens

    def _find(self, c: Continuation, tail: Tail, method: Method) -> Fork | None:
        marks = [f"Mrk{at}x{secrets.token_hex(8)}" for at in range(len(c.new_messages))]
        marked = replace(c, new_messages=_marked(c.new_messages, marks))
        written = written_around(self._renderer, marked, method)
        if isinstance(written, Fork):
            return written
        before, after = written
        if any(mark in before for mark in marks):
            return Fork(ELSEWHERE)
        unmarked = gap_of(self._renderer, after) == tail.gap and not any(mark in tail.gap for mark in marks)
        return None if unmarked else Fork(BEHIND)


def _marked(messages: Sequence[dict], marks: Sequence[str]) -> list[dict]:
    """Replace each message's text by its mark; images stay."""
    return [
        {**message, "content": _said(message["content"], mark)} for message, mark in zip(messages, marks, strict=True)
    ]


def _said(content: str | list[dict], mark: str) -> str | list[dict]:
    if isinstance(content, str):
        return mark
    return [{**part, "text": mark} if part["type"] == "text" else part for part in content]
