"""Tails put together instead of rendered.

Most templates write constant text around what is said in new messages. Where trials show that one
does, its tail is rendered once with stand-ins for what is said, and each later tail is those pieces
with the real words between them.
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import orjson

from slime_agl.chat.template.messages import Reply, ToolCall
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.shape import PROBE_TOOLS
from slime_agl.chat.template.tail import Continuation, Fork, tail_of
from slime_agl.lru import LRU

HELD = 1024
MOST_MESSAGES, MOST_SHAPES = 8, 128
_LITERAL = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\"""")
_SAID = (
    "word", "two  words\n\n\nand more", '{"a": [1, 2.50], "b": null}', "[1, 2]", "12", "true", "None",
    '"quoted" \'twice\' \\n <b>&amp;</b> {{ x }} {% y %}', "<think>\nfirst\n</think>\nthen", "</think>x", "ﬁ ﷺ é́ 日本 👍🏽",
    "-" * 5000,
)  # fmt: skip

Pieces = tuple[str, ...]
Manner = Callable[[str], str]
Shape = tuple[tuple[str, ...], int, bool, bytes]


class Glue:
    """The pieces of one renderer's tails in mode 'short', by what they may depend on.

    That is: roles of the new messages, number of calls, white space at the ends of what is said, system
    message, tools, template variables, stop tokens.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._proven: dict[Any, Manner | None] = {}
        self._proving = threading.Lock()
        self._held: LRU[Any, tuple[Manner | None, Pieces | None]] = LRU(HELD)

    def ids(self, c: Continuation) -> list[int] | None:
        """The ids that `tail_of` gives in mode 'short', None where only rendering tells."""
        if not _tried(c):
            return None
        manner, pieces = self._pieces(c)
        if manner is None or pieces is None:
            return None
        ids = self._renderer.encode(_joined(pieces, c.new_messages, manner))
        return ids if ids and ids[0] in self._renderer.marker_ids else None

    def knows(self, c: Continuation) -> bool:
        """Whether `ids` answers without the trials of a new shape, which take up to some tenths of a second."""
        return not _tried(c) or _kind(c) in self._proven

    def _pieces(self, c: Continuation) -> tuple[Manner | None, Pieces | None]:
        shape, system = _shape(c), _system(c)
        key = (shape, system, c.tools and c.tools.text, self._renderer.stop_tokens)
        held = self._held.get(key)
        if held is None:
            manner = self._manner(c, system)
            held = self._held[key] = (manner, _cut_up(self._renderer, c) if manner else None)
        return held

    def _manner(self, c: Continuation, system: str | None) -> Manner | None:
        kind = _kind(c)
        if kind not in self._proven:
            with self._proving:
                # Each costs some hundred renders, once; an agent may invent template variables at every turn.
                if kind not in self._proven and len(self._proven) < MOST_SHAPES:
                    self._proven[kind] = _manner(self._renderer, c, system)
        return self._proven.get(kind)


def _shape(c: Continuation) -> Shape:
    """What a tail's pieces depend on, apart from system message and tools."""
    kwargs = orjson.dumps(c.kwargs, option=orjson.OPT_SORT_KEYS) if c.kwargs else b""
    roles = tuple(message["role"] for message in c.new_messages)
    return roles, len(c.reply.tool_calls), _ragged(c.new_messages), kwargs


def _system(c: Continuation) -> str | None:
    return c.context[0]["content"] if c.context and c.context[0]["role"] == "system" else None


def _kind(c: Continuation) -> tuple[Shape, bool, bool]:
    """What is tried once: a shape, with a system message or without, with tools or without."""
    return _shape(c), _system(c) is None, c.tools is None


def _tried(c: Continuation) -> bool:
    """Whether the new messages are of the sort that is tried: text, with ids of this turn's calls."""
    if c.prefill is not None or len(c.new_messages) > MOST_MESSAGES:
        return False
    ids = {call.id for call in c.reply.tool_calls}
    for message in c.new_messages:
        extra = len(message) - 2
        if not isinstance(message["content"], str):
            return False
        if extra and (message["role"] != "tool" or extra != ("name" in message) + (message.get("tool_call_id") in ids)):
            return False
    return True


def _ragged(messages: Sequence[dict]) -> bool:
    """Whether a message is empty, or has white space at an end, which many templates remove."""
    return any(not said or said[0].isspace() or said[-1].isspace() for said in (m["content"] for m in messages))


def _joined(pieces: Pieces, messages: Sequence[dict], manner: Manner) -> str:
    said = (manner(message["content"]) for message in messages)
    return "".join(part for pair in zip_longest(pieces, said, fillvalue="") for part in pair)


def _cut_up(renderer: Renderer, c: Continuation) -> Pieces | None:
    """The tail's text around what the new messages say; None when that is not there once each, in order."""
    marks = [f"Sntnl{at}x{at}" for at in range(len(c.new_messages))]
    said = [{**message, "content": mark} for message, mark in zip(c.new_messages, marks, strict=True)]
    tail = tail_of(renderer, replace(c, new_messages=said), "short")
    if isinstance(tail, Fork):
        return None
    pieces, rest = [], tail.text
    for mark in marks:
        if rest.count(mark) != 1:
            return None
        piece, _, rest = rest.partition(mark)
        pieces.append(piece)
    pieces.append(rest)
    return tuple(pieces) if any(pieces[0].startswith(token) for token in renderer.stop_tokens) else None


def _manner(renderer: Renderer, c: Continuation, system: str | None) -> Manner | None:
    """How the tail of continuations of this shape puts what is said between the same pieces, whatever is said,
    called and named: as it stands, or without white space at its ends; None for any other way."""
    context = [{"role": "user", "content": "x"}]
    if system is not None:
        context.insert(0, {"role": "system", "content": "You keep a lighthouse."})
    tools = None if c.tools is None else PROBE_TOOLS

    def trial(said: str, name: str = "probe_tool", first: int = 1, named: bool = True) -> Continuation:
        calls = tuple(ToolCall(f"probe{first + at:04d}", name, "{}") for at in range(len(c.reply.tool_calls)))
        return Continuation(context, Reply("", "", calls), _saying(c, said, calls, named), tools, c.kwargs, None)

    pieces = _cut_up(renderer, trial("x"))
    others = (trial("x", "other", 4), trial("x", named=False))
    if pieces is None or any(_cut_up(renderer, other) != pieces for other in others):
        return None
    trials = [trial(said) for said in _sayings(renderer.template, ragged=_ragged(c.new_messages))]
    for manner in (str, str.strip):
        if all(_wrote(renderer, one, _joined(pieces, one.new_messages, manner)) for one in trials):
            return manner
    return None


def _wrote(renderer: Renderer, c: Continuation, text: str) -> bool:
    tail = tail_of(renderer, c, "short")
    return not isinstance(tail, Fork) and tail.text == text


def _saying(c: Continuation, said: str, calls: Sequence[ToolCall], named: bool) -> list[dict]:
    new: list[dict] = []
    for at, message in enumerate(c.new_messages):
        out = {"role": message["role"], "content": said if at % 2 == 0 else f"{said} {said}"}
        if message["role"] == "tool":
            call = calls[min(at, len(calls) - 1)] if calls else ToolCall("probe0001", "probe_tool", "{}")
            out |= {"tool_call_id": call.id, **({"name": call.name} if named else {})}
        new.append(out)
    return new


def _sayings(template: str, *, ragged: bool) -> list[str]:
    """What a template might look for: its own string literals foremost, alone and at both ends of a word."""
    found: dict[str, None] = dict.fromkeys(_SAID)
    for match in _LITERAL.findall(template):
        try:
            text = ast.literal_eval(match)
        except (ValueError, SyntaxError):
            continue
        found |= dict.fromkeys((text.strip(), f"{text}word{text}".strip(), f"word{text}word"))
    found.pop("", None)
    if not ragged:
        return list(found)
    return ["", " ", "\n", *found, *(f"\n  {said} \n\n" for said in found)]
