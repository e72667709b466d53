"""Prompts as the engine takes them: ids in decimal text, written once and then only extended."""

from __future__ import annotations

from array import array
from collections import OrderedDict

import orjson

from slime_agl.trace.ledger import Ledger

TEXTS_HELD = 4


class HeldPrompts:
    """The sequences of an attempt's turns (prompt and output) as text.

    Texts are held for the ends of the latest chains; a turn on the way to such an end is a part of its text,
    and one elsewhere is written anew.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._texts: OrderedDict[int, bytes] = OrderedDict()
        self._ends = array("q")

    def text(self, index: int) -> bytes:
        """The exact ids of turn `index`."""
        found = self._texts.get(index)
        if found is not None:
            return found
        for leaf, text in self._texts.items():
            if leaf > index and any(turn.index == index for turn in self._ledger.path(leaf)):
                return text[: self._ends[index]]
        return ids_json(self._ledger.held(index))

    def keep(self, index: int, text: bytes) -> None:
        """Hold the text of turn `index`, the one committed last."""
        self._ends.append(len(text))
        parent = self._ledger.turns[index].parent
        if parent is not None:
            self._texts.pop(parent, None)
        self._texts[index] = text
        if len(self._texts) > TEXTS_HELD:
            self._texts.popitem(last=False)


def ids_json(ids: array) -> bytes:
    """Ids as comma separated decimal text, without brackets."""
    return orjson.dumps(ids.tolist())[1:-1]


def joined_json(*texts: bytes) -> bytes:
    return b",".join(text for text in texts if text)
