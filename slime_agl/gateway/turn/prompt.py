"""A prompt as the engine takes it: ids in decimal text, written once and then only extended."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Media

if TYPE_CHECKING:
    from slime_agl.gateway.turn.conversation import Node
    from slime_agl.gateway.turn.own_prompts import Start

TEXTS_HELD = 4


@dataclass(frozen=True, slots=True)
class IdText:
    """A sequence of token ids. text: comma-separated decimals without brackets. length: how many they are."""

    text: bytes = b""
    length: int = 0

    def extended(self, ids: array) -> IdText:
        """This sequence and `ids`. Only `ids` are written."""
        if not ids:
            return self
        added = orjson.dumps(ids.tolist())[1:-1]
        return IdText(b",".join((self.text, added)) if self.text else added, self.length + len(ids))


class HeldTexts:
    """The sequences of an attempt's turns (prompt and output) as text.

    Texts are held for the ends of the latest chains; a turn on the way to such an end is a part of its text,
    and one elsewhere is written anew.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._texts: OrderedDict[int, bytes] = OrderedDict()
        self._ends = array("q")

    def of(self, index: int | None) -> IdText:
        """The exact ids of turn `index`; no ids for None."""
        if index is None:
            return IdText()
        found = self._texts.get(index) or self._part(index)
        return (
            IdText().extended(self._ledger.held(index)) if found is None else IdText(found, self._ledger.length(index))
        )

    def keep(self, index: int, ids: IdText) -> None:
        """Hold the ids of turn `index`, the one committed last."""
        self._ends.append(len(ids.text))
        parent = self._ledger.turns[index].parent
        if parent is not None:
            self._texts.pop(parent, None)
        self._texts[index] = ids.text
        if len(self._texts) > TEXTS_HELD:
            self._texts.popitem(last=False)

    def _part(self, index: int) -> bytes | None:
        """The text of a turn as the beginning of a later one's."""
        for leaf, text in self._texts.items():
            if leaf > index and any(turn.index == index for turn in self._ledger.path(leaf)):
                return text[: self._ends[index]]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the engine is to be shown.

    parent: the turn continued, or None. new_ids: what comes after it. ids: the whole sequence.
    fork: why the prompt is not a plain continuation, '' when it is. media: the images that `new_ids` show.
    node: the parent in the conversation. added: the messages since then, as sent. tools: the tools that they came with.
    start: how a text that the agent made itself begins. begun: the part of the answer that the prompt ends with.
    """

    parent: int | None
    new_ids: array
    ids: IdText
    fork: str = ""
    media: Media | None = None
    node: Node | None = None
    added: tuple[dict[str, Any], ...] = ()
    tools: list[dict[str, Any]] | None = field(default=None)
    start: Start | None = None
    begun: str = ""
