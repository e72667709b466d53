"""Find how a template can be shown several system messages, and system messages after a turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import get_args

from slime_agl.chat.proof.probes import (
    ANSWER,
    ASKED,
    KEPT,
    NEXT,
    RESULTS,
    SYSTEM,
    TOLD,
    USER,
    VALUE,
    calls_of,
    result_of,
)
from slime_agl.chat.proof.proofs import prove, try_render
from slime_agl.chat.proof.report import KindReport
from slime_agl.chat.template.messages import Reply, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.shape import PROBE_TOOLS
from slime_agl.chat.template.systems import Later, Systems
from slime_agl.chat.template.tools import Tools

Kinds = Mapping[str, KindReport]
_LATER, _ASKED = NEXT["system"], NEXT["user"]
_HARBOUR = "harbour free"


def find_systems(renderer: Renderer, native: Kinds) -> tuple[Systems, Kinds]:
    """Choose how system messages are shown; return that, and the findings on all kinds as they are then shown.

    native: the findings on the kinds as sent. The first way is taken that shows them in their place and forks at no
    kind that would not fork for a user message or tool result; else the first that shows them at all.
    """
    folds = not _in_order(try_render(renderer, [SYSTEM, _LATER, USER], None, {}, True), (KEPT, TOLD, _HARBOUR))
    kinds = [kind for kind in native if "system" in kind.split("_then_")]
    wanted = [kind for kind in kinds if native["tool" if kind.startswith("tool") else "user"].method != "fork"]
    shown: list[tuple[Systems, Kinds]] = []
    for later in get_args(Later):
        systems = Systems(folds, later)
        if not _shows(renderer, systems):
            continue
        found = dict(native)
        if later != "as_sent":
            found |= {kind: prove(renderer, kind, {}, systems) for kind in kinds}
        if all(found[kind].method != "fork" and not found[kind].hides for kind in wanted):
            return systems, found
        shown.append((systems, found))
    return shown[0] if shown else (Systems(folds), native)


def _shows(renderer: Renderer, systems: Systems) -> bool:
    """Check that prompts with a later system message show it in its place, wherever they can be shown without it."""
    tried = False
    for messages, tools, words in _prompts():
        plain = [message for message in messages if message is not _LATER]
        without = tuple(word for word in words if word != TOLD)
        if not _in_order(try_render(renderer, plain, tools, {}, True), without):
            continue
        tried = True
        text = try_render(renderer, systems.shown(messages, first=True), tools, {}, True)
        if not _in_order(text, words) or text.count(TOLD) != 1:
            return False
    return tried


def _prompts() -> Iterator[tuple[list[dict], Tools | None, tuple[str, ...]]]:
    """Yield prompts with one later system message each, and words of their messages in order."""
    answer = {"role": "assistant", "content": ANSWER}
    yield [USER, _LATER], None, (_HARBOUR, TOLD)
    yield [SYSTEM, USER, _LATER], None, (KEPT, _HARBOUR, TOLD)
    yield [SYSTEM, USER, answer, _LATER, _ASKED], None, (KEPT, _HARBOUR, ANSWER, TOLD, ASKED)
    (call,) = calls = calls_of("tool")
    called = [USER, reply_message(Reply("", "", calls)), result_of(call, RESULTS[0])]
    yield [*called, _LATER], PROBE_TOOLS, (_HARBOUR, VALUE, RESULTS[0], TOLD)


def _in_order(text: str, words: tuple[str, ...]) -> bool:
    places = [text.find(word) for word in words]
    return min(places) >= 0 and all(one < other for one, other in pairwise(places))
