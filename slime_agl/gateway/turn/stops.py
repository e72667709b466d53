"""Stop strings of a turn that an abort has cut.

An engine looks for stop strings in what one request sampled. When a turn goes on in a second request, a stop string
that began before the cut would be overlooked; so the second request is also stopped by what is left of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slime_agl.trace.turn import ABORT, STOP, Sampled

HALF_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True)
class Stops:
    """strings: the stop strings of the turn. decode: ids to text."""

    strings: tuple[str, ...]
    decode: Callable[[Sequence[int]], str]

    @classmethod
    def of(cls, params: Mapping[str, Any], decode: Callable[[Sequence[int]], str]) -> Stops:
        """Those of SGLang's sampling parameters, where `stop` is a string, a list or nothing."""
        stop = params.get("stop") or ()
        return cls((stop,) if isinstance(stop, str) else tuple(stop), decode)

    def after(self, parts: Sequence[Sampled]) -> list[str]:
        """The stop strings to ask with when a turn goes on after `parts`.

        A character of which only the first bytes are sampled shows as U+FFFD on both sides of the cut.
        """
        text = self._tail(parts)
        rests = {stop[begun:] for stop in self.strings for begun in range(1, len(stop)) if text.endswith(stop[:begun])}
        # Some tokenizers drop a space that comes first.
        rests |= {rest.lstrip() for rest in rests} - {""}
        if text.endswith(HALF_CHARACTER) and not all(stop.isascii() for stop in self.strings):
            rests.add(HALF_CHARACTER)
        return [*self.strings, *sorted(rests.difference(self.strings))]

    def settled(self, parts: Sequence[Sampled], part: Sampled) -> Sampled:
        """The answer that followed `parts`, ended by a whole stop string.

        What is left of one may also stand elsewhere: then the turn has not ended, as if an abort had cut it again.
        """
        if not isinstance(part.matched, str) or not self.strings or part.matched in self.strings:
            return part
        text = self._tail([*parts, part])
        matched = next((stop for stop in self.strings if stop in text), None)
        return replace(part, finish=STOP if matched else ABORT, matched=matched)

    def _tail(self, parts: Sequence[Sampled]) -> str:
        if not self.strings:
            return ""
        # A token stands for at least one byte, so a stop string that ends with the last token lies within these.
        window = max(len(stop.encode()) for stop in self.strings) + 4
        ids = array("i")
        for part in reversed(parts):
            ids = part.ids[-window:] + ids
            if len(ids) >= window:
                break
        return self.decode(list(ids[-window:]))
