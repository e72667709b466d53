"""Stop strings across an abort.

An engine looks for stop strings within the output of one request. When a turn resumes in a second request, a stop
string that began before the cut would be missed, so the second request also stops at the rest of that string.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from slime_agl.trace.turn import ABORT, STOP, Sampled

HALF_CHARACTER = "\ufffd"


class Stops(Struct, frozen=True):
    """strings: the stop strings of the turn. decode: ids to text."""

    strings: tuple[str, ...]
    decode: Callable[[Sequence[int]], str]

    @classmethod
    def of(cls, params: Mapping[str, object], decode: Callable[[Sequence[int]], str]) -> Stops:
        """Read SGLang's sampling parameters, where `stop` is a string, a list or absent."""
        stop = params.get("stop") or ()
        return cls((stop,) if isinstance(stop, str) else tuple(cast(Sequence[str], stop)), decode)

    def after(self, parts: Sequence[Sampled]) -> list[str]:
        """Return the stop strings to send when a turn resumes after `parts`.

        A character split by the cut shows as U+FFFD on both sides.
        """
        text = self._tail(parts)
        rests = {stop[begun:] for stop in self.strings for begun in range(1, len(stop)) if text.endswith(stop[:begun])}
        # Some tokenizers drop a leading space.
        rests |= {rest.lstrip() for rest in rests} - {""}
        if text.endswith(HALF_CHARACTER) and not all(stop.isascii() for stop in self.strings):
            rests.add(HALF_CHARACTER)
        return [*self.strings, *sorted(rests.difference(self.strings))]

    def settled(self, parts: Sequence[Sampled], part: Sampled) -> Sampled:
        """Check that the answer after `parts` ended at a whole stop string.

        The rest of one may also occur on its own. Then the turn has not ended, and counts as aborted again.
        """
        if not isinstance(part.matched, str) or not self.strings or part.matched in self.strings:
            return part
        text = self._tail([*parts, part])
        matched = next((stop for stop in self.strings if stop in text), None)
        return replace(part, finish=STOP if matched else ABORT, matched=matched)

    def _tail(self, parts: Sequence[Sampled]) -> str:
        if not self.strings:
            return ""
        # A token encodes at least one byte, so a stop string that ends with the last token lies within this window.
        window = max(len(stop.encode()) for stop in self.strings) + 4
        ids = array("i")
        for part in reversed(parts):
            ids = part.ids[-window:] + ids
            if len(ids) >= window:
                break
        return self.decode(list(ids[-window:]))
