"""Where a rerun agent left the way that was recorded, as something to read."""

from __future__ import annotations

import difflib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

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

    kind: 'changed' the prompt is another than that of the nearest recorded turn; 'more' it goes on where the record
    ends; 'again' a recorded prompt is asked more often; 'images' it shows other images; 'early' the agent ended before
    recorded turns.
    attempt, turn: of the record; turn is None where the record has none. token: place in the prompt of the first token
    that differs. recorded, asked: what stands there (None beyond an end). words: all that in a sentence.
    diff: a unified diff of the prompts, as lines; it leaves out what both share with an earlier turn.
    """

    kind: Kind
    attempt: int
    turn: int | None
    words: str
    token: int | None = None
    recorded: str | None = None
    asked: str | None = None
    diff: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def unrecorded(ledger: Ledger, prompt: Unrecorded, texts: Texts) -> Divergence:
    """What is different about a prompt that the record does not answer.

    ledger: of the attempt in which it was asked. texts: the text of each of some ids.
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
    # Of equally near ones the one that is still to come was meant.
    nearest = max(children, key=lambda turn: (_common(ledger.prompt_ids(turn.index), asked), turn.index not in given))
    there_ids = ledger.prompt_ids(nearest.index)
    token = _common(there_ids, asked)
    there, here = _at(there_ids, token, texts), _at(asked, token, texts)
    words = (
        f"turn {nearest.index}: token {token} of the prompt is {_quoted(there)} in the record, {_quoted(here)} was asked "
        f"({len(there_ids)} tokens recorded, {len(asked)} asked)"
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
    """The agent ended before it asked for `missing`."""
    first = missing[0]
    words = (
        f"the agent ended early: {len(missing)} of {len(ledger.turns)} recorded turns were not asked for, "
        f"the first is turn {first.index}"
    )
    diff = _diff(_lines(texts(first.new_ids)), [], [])
    return Divergence(kind="early", attempt=attempt, turn=first.index, words=words, diff=diff)


def _asked_again(ledger: Ledger, turn: Turn, prompt: Unrecorded) -> Divergence:
    """A prompt with the very ids of a recorded one."""
    if prompt.images != ledger.images(turn.index):
        words = f"turn {turn.index}: the prompt has the recorded tokens, but shows other images"
        return Divergence(kind="images", attempt=prompt.attempt, turn=turn.index, words=words)
    words = f"the prompt of turn {turn.index} was asked once more than when it was recorded"
    return Divergence(kind="again", attempt=prompt.attempt, turn=turn.index, words=words)


def _more(
    ledger: Ledger, parent: int | None, base: array, asked: array, texts: Texts, attempt: int
) -> Divergence:  # fmt: skip
    diff = _diff([], _lines(texts(asked[len(base) :])), _lines(texts(base[-200:])))
    after = f"after turn {parent}, where the record ends" if parent is not None else "and the record has no turn"
    words = f"the agent asked for more: it went on {after} ({len(ledger.turns)} turns recorded)"
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
    """The longest recorded sequence that the prompt goes on from."""
    held = [(ledger.length(turn.index), turn.index) for turn in ledger.turns]
    for length, index in sorted(held, reverse=True):
        if length < len(asked) and ledger.ids(index) == asked[:length]:
            return index
    return None


def _common(one: array, other: array) -> int:
    """Length of the common beginning."""
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
    """A unified diff, below the last lines of what both begin with."""
    before, shared = before[-CONTEXT_LINES - 1 : -1], before[-1] if before else ""
    one, other = (
        [*before, shared + lines[0], *lines[1:]] if lines else [*before, *([shared] if shared else [])]
        for lines in (recorded, asked)
    )
    found = difflib.unified_diff(one, other, "recorded", "asked", n=CONTEXT_LINES, lineterm="")
    # Line numbers would be those of an excerpt.
    lines = ["@@" if line.startswith("@@ ") else _cut(line) for line in found]
    if len(lines) > LONGEST_DIFF:
        lines = [*lines[:LONGEST_DIFF], f"… {len(lines) - LONGEST_DIFF} more lines"]
    if not lines and recorded and asked:
        lines = ["  the texts are the same, their tokens are not"]
    return tuple(lines)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " …"
