"""Describe where a rerun departs from its record."""

from __future__ import annotations

import difflib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from slime_agl.rerun.engine import Unrecorded
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Turn

CONTEXT_LINES = 2
LONGEST_DIFF = 60
LONGEST_LINE = 1000

Texts = Callable[[Sequence[int]], list[str]]
Kind = Literal["changed", "more", "again", "images", "early"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first difference.

    kind: 'changed' the prompt differs from the nearest recorded turn's; 'more' it continues after the record's end;
    'again' a recorded prompt is sent more often; 'images' its images differ; 'early' the agent ended before the record.
    attempt, turn: of the record; turn is None if there is none. token: position in the prompt of the first different
    token. recorded, asked: texts of that token (None past an end). words: the difference in one sentence.
    diff: a unified diff of the prompts, as lines, without the part that both share with an earlier turn.
    """

    kind: Kind
    attempt: int
    turn: int | None
    words: str
    token: int | None = None
    recorded: str | None = None
    asked: str | None = None
    diff: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def unrecorded(ledger: Ledger, prompt: Unrecorded, texts: Texts) -> Divergence:
    """Describe how an unrecorded prompt differs from the record.

    ledger: of the attempt that sent it. texts: returns the text of each id.
    """
    asked, attempt, given = prompt.ids, prompt.attempt, prompt.given
    for turn in ledger.turns:
        if ledger.prompt_ids(turn.index) == asked:
            return _asked_again(ledger, turn, prompt)
    parent = _parent(ledger, asked)
    base = array("i") if parent is None else ledger.ids(parent)
    children = [ledger.turns[index] for index in ledger.children(parent)]
    if not children:
        return _more(ledger, parent, base, asked, texts, attempt)
    # Among equally near turns, prefer one that was not requested yet.
    nearest = max(children, key=lambda turn: (_common(ledger.prompt_ids(turn.index), asked), turn.index not in given))
    there_ids = ledger.prompt_ids(nearest.index)
    token = _common(there_ids, asked)
    there, here = _at(there_ids, token, texts), _at(asked, token, texts)
    words = (
        f"turn {nearest.index}: token {token} of the prompt is {_quoted(there)} in the record, {_quoted(here)} in the "
        f"rerun ({len(there_ids)} tokens recorded, {len(asked)} sent)"
    )
    diff = _diff(_lines(texts(nearest.new_ids)), _lines(texts(asked[len(base) :])), _lines(texts(base[-200:])))
    return Divergence(
        kind="changed",
        attempt=attempt,
        turn=nearest.index,
        words=words,
        token=token,
        recorded=there,
        asked=here,
        diff=diff,
    )


def ended_early(ledger: Ledger, missing: Sequence[Turn], texts: Texts, *, attempt: int) -> Divergence:
    """Describe an agent that ended before it requested the turns in `missing`."""
    first = missing[0]
    words = (
        f"the agent ended early: {len(missing)} of {len(ledger.turns)} recorded turns were not requested, "
        f"the first is turn {first.index}"
    )
    diff = _diff(_lines(texts(first.new_ids)), [], [])
    return Divergence(kind="early", attempt=attempt, turn=first.index, words=words, diff=diff)


def _asked_again(ledger: Ledger, turn: Turn, prompt: Unrecorded) -> Divergence:
    """Describe a prompt with the same ids as a recorded one."""
    if prompt.images != ledger.images(turn.index):
        words = f"turn {turn.index}: the prompt has the recorded tokens, but other images"
        return Divergence(kind="images", attempt=prompt.attempt, turn=turn.index, words=words)
    words = f"the prompt of turn {turn.index} was sent once more than in the recorded run"
    return Divergence(kind="again", attempt=prompt.attempt, turn=turn.index, words=words)


def _more(ledger: Ledger, parent: int | None, base: array, asked: array, texts: Texts, attempt: int) -> Divergence:
    diff = _diff([], _lines(texts(asked[len(base) :])), _lines(texts(base[-200:])))
    after = f"after turn {parent}, where the record ends" if parent is not None else "though the record has no turn"
    words = f"the agent sent another request {after} ({len(ledger.turns)} turns recorded)"
    return Divergence(
        kind="more",
        attempt=attempt,
        turn=parent,
        words=words,
        token=len(base),
        recorded=None,
        asked=_at(asked, len(base), texts),
        diff=diff,
    )


def _parent(ledger: Ledger, asked: array) -> int | None:
    """Return the turn with the longest recorded sequence that the prompt extends."""
    lengths = [(ledger.length(turn.index), turn.index) for turn in ledger.turns]
    for length, index in sorted(lengths, reverse=True):
        if length < len(asked) and ledger.ids(index) == asked[:length]:
            return index
    return None


def _common(one: array, other: array) -> int:
    """Return the length of the common prefix."""
    length = min(len(one), len(other))
    different = np.frombuffer(one, np.int32, length) != np.frombuffer(other, np.int32, length)
    return int(different.argmax()) if different.any() else length


def _at(ids: array, token: int, texts: Texts) -> str | None:
    return "".join(texts(ids[token : token + 1])) if token < len(ids) else None


def _quoted(text: str | None) -> str:
    return "nothing" if text is None else repr(text)


def _lines(pieces: list[str]) -> list[str]:
    return "".join(pieces).split("\n")


def _diff(recorded: list[str], asked: list[str], before: list[str]) -> tuple[str, ...]:
    """Return a unified diff, below the last lines of the shared context `before`."""
    before, shared = before[-CONTEXT_LINES - 1 : -1], before[-1] if before else ""
    one, other = (
        [*before, shared + lines[0], *lines[1:]] if lines else [*before, *([shared] if shared else [])]
        for lines in (recorded, asked)
    )
    found = difflib.unified_diff(one, other, "recorded", "asked", n=CONTEXT_LINES, lineterm="")
    # Line numbers would be meaningless: the texts are excerpts.
    lines = ["@@" if line.startswith("@@ ") else _cut(line) for line in found]
    if len(lines) > LONGEST_DIFF:
        lines = [*lines[:LONGEST_DIFF], f"… {len(lines) - LONGEST_DIFF} more lines"]
    if not lines and recorded and asked:
        lines = ["  the texts are equal, the tokens differ"]
    return tuple(lines)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " …"
