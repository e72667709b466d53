"""Parse request bodies that repeat earlier ones, and add to them.

Agents send the whole conversation with every turn, and the same tools with every conversation. Parsing that again, and
releasing what was parsed, costs in proportion to the history: 0.72 ms for the 470 KB of turn 400. So two things are
noted: what surrounds a conversation (`Frame`), by its bytes, for all attempts; and the conversation itself (`_Noted`),
for the attempt that sent it. A body that has the same bytes up to some element and from the last one on costs a
comparison with those, and the parsing of what stands between.

The result is the same as without this (see `plain`), since JSON between two elements of an array means the same
whatever comes before; but what was seen before are the same objects, and their list is kept, so nobody may change them.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

# Bodies of one attempt that may be continued: a conversation has the latest, and subagents have some.
KEPT = 4
# Some clients rewrite the conversation in each request. After so many bodies that nothing continued, none is noted.
MOST_MISSES = 4
# Bodies between these sizes are kept for comparison, which takes 2 us for 80 KB; hashing takes 54. Of shorter ones
# there are too many, and longer ones, with images, would take too much memory.
LEAST_HELD, LARGEST_HELD = 32 * 1024, 4 * 1024**2
# Frames that the bodies of new conversations are compared with: those made last.
FRAMES = 32

_value = json.JSONDecoder().raw_decode
_space = re.compile(r"[ \t\n\r]*").match


class Frame:
    """The part of a body around its conversation. Bodies with the same bytes there share one frame.

    before, after: those bytes, up to the first element and from the end of the last. fields: the other fields; the
    conversation's stands among them without value. options: what was read from them, see `fields.options`.
    """

    __slots__ = ("after", "array", "before", "fields", "options")

    def __init__(self, array: str, before: bytes, after: bytes, fields: dict[str, Any]) -> None:
        self.array, self.before, self.after, self.fields = array, before, after, fields
        self.options: dict[object, Any] = {}

    def surrounds(self, raw: bytes, array: str) -> bool:
        """Return True if a body may have this frame. What it surrounds has to be parsed alone, so not for long ones."""
        fits = len(self.before) + len(self.after) < len(raw) <= LARGEST_HELD
        return self.array == array and fits and raw.startswith(self.before) and raw.endswith(self.after)


class Parsed(NamedTuple):
    """A parsed body. digest: equal bodies have it in common, others not. frame: None if it has no conversation."""

    body: Any
    digest: bytes
    frame: Frame | None = None


class _Noted(Struct):
    """A conversation that later bodies may continue.

    length: bytes up to the end of its last element. digest: their hash. held: a body that begins with them, with
    `hashed`, their hash so far; both None for bodies that are not held.
    reader: the dialect that checked its elements. made: what it made of them. before: the conversation that this one
    continues, None once this one is checked.
    """

    frame: Frame
    length: int
    digest: bytes
    elements: list[Any]
    held: bytes | None = None
    hashed: Any = None
    reader: object = None
    made: Sequence[Any] = ()
    before: _Noted | None = None

    def opened(self, raw: bytes, array: str) -> Any:
        """Return the hash of what a body repeats of this one, open for more; None if it does not continue it."""
        frame, length = self.frame, self.length
        if frame.array != array or not raw.startswith(b",", length) or not raw.endswith(frame.after):
            return None
        if self.held is not None:
            return self.hashed.copy() if raw.startswith(memoryview(self.held)[:length]) else None
        hashed = sha256(memoryview(raw)[:length])
        return hashed if hashed.digest() == self.digest else None


class Seen:
    """Bodies that one attempt sent.

    count: elements of the last body that was not noted, None before the first.
    """

    __slots__ = ("count", "misses", "noted")

    def __init__(self) -> None:
        self.noted: list[_Noted] = []
        self.misses = 0
        self.count: int | None = None

    def known(self, elements: object, reader: object) -> tuple[int, Sequence[Any]]:
        """Return the number of leading elements that this reader has checked, and what it made of those."""
        before = self.noted[-1].before if self.noted and self.noted[-1].elements is elements else None
        if before is None or before.reader is not reader:
            return 0, ()
        return len(before.elements), before.made

    def accept(self, elements: list[Any], reader: object, made: Sequence[Any] = ()) -> None:
        """Note elements as checked, and what was made of them, if their body is noted."""
        if self.noted and self.noted[-1].elements is elements:
            noted = self.noted[-1]
            noted.reader, noted.made, noted.before = reader, made, None

    def note(self, noted: _Noted, continued: _Noted | None = None) -> None:
        """Note a body, which may be the continuation of another. Of a short conversation only the latest is kept.

        Of a long one branches are kept, too; one body is held for all of them.
        """
        others = self.noted
        if continued is not None and continued.held is None:
            others = [one for one in others if one is not continued]
        elif continued is not None:
            shared = continued.held
            for earlier in others:
                if earlier.held is shared and earlier.length <= continued.length:
                    earlier.held = noted.held
        self.noted = [*others, noted][-KEPT:]


class Repeats:
    """Parses the bodies of all attempts."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque(maxlen=FRAMES)

    def parse(self, raw: bytes, array: str, seen: Seen) -> Parsed:
        """Parse a body. array: the field with the conversation; '' if there is none.

        Raises:
            orjson.JSONDecodeError: the body is not JSON.
        """
        if not array:
            return Parsed(plain(raw), sha256(raw).digest())
        for noted in sorted(seen.noted, key=_length, reverse=True):
            hashed = noted.opened(raw, array)
            if hashed is not None:
                added = _elements_of(raw, noted.length + 1, len(raw) - len(noted.frame.after))
                if added:
                    seen.misses = 0
                    return self._body(raw, noted.frame, noted.length, hashed, [*noted.elements, *added], seen, noted)
                break
        for frame in self._frames:
            if frame.surrounds(raw, array):
                elements = _elements_of(raw, len(frame.before), len(raw) - len(frame.after))
                if elements:
                    return self._body(raw, frame, 0, sha256(), elements, seen)
        return self._whole(raw, array, seen)

    def _body(
        self,
        raw: bytes,
        frame: Frame,
        at: int,
        hashed: Any,
        elements: list[Any],
        seen: Seen,
        found: _Noted | None = None,
    ) -> Parsed:
        """Put a body together, and note it. hashed: the hash of its first `at` bytes. found: what it continues."""
        end = len(raw) - len(frame.after)
        hashed.update(memoryview(raw)[at:end])
        if found is not None or seen.misses < MOST_MISSES:
            seen.misses += found is None
            noted = _Noted(frame, end, hashed.digest(), elements, before=found)
            if LEAST_HELD <= len(raw) <= LARGEST_HELD:
                noted.held, noted.hashed = raw, hashed.copy()
            if found is not None:
                found.before = None  # set if its elements were refused; else these would form a chain
            seen.note(noted, found)
        hashed.update(frame.after)
        return Parsed({**frame.fields, frame.array: elements}, hashed.digest(), frame)

    def _whole(self, raw: bytes, array: str, seen: Seen) -> Parsed:
        """Parse a body that repeats nothing, and note it."""
        body, place = plain(raw), None
        elements = body.get(array) if isinstance(body, dict) else None
        if isinstance(elements, list):
            # Not the first, as many conversations have one only.
            if seen.count is not None and len(elements) > seen.count and seen.misses < MOST_MISSES:
                place = _place(raw, array)
            seen.count = len(elements)
        if place is None or not isinstance(elements, list):
            return Parsed(body, sha256(raw).digest())
        begin, end = place
        frame = Frame(array, raw[:begin], raw[end:], {**body, array: None})
        self._frames.appendleft(frame)
        return self._body(raw, frame, 0, sha256(), elements, seen)


def _length(noted: _Noted) -> int:
    return noted.length


def _elements_of(raw: bytes, begin: int, end: int) -> list[Any] | None:
    """Parse elements that stand between two places of a body; None if it is something else that does."""
    try:
        return plain(b"[" + raw[begin:end] + b"]")
    except orjson.JSONDecodeError:
        return None


def plain(raw: bytes) -> Any:
    return orjson.loads(raw)


def _place(raw: bytes, array: str) -> tuple[int, int] | None:
    """Find an array among the fields of an object: where its elements begin, and where the last one ends.

    The last one counts, as in parsing. None without such a field or elements, or for what the standard library does not
    parse.
    """
    # One character per byte, so places are the same; what strings hold does not matter.
    text, found = raw.decode("latin-1"), None
    try:
        at = _next(text, _next(text, 0) + 1)
        while text[at] != "}":
            name, at = _value(text, at)
            at = _next(text, _next(text, at) + 1)
            if name == array:
                if text[at] != "[":
                    return None
                found = _elements(text, at + 1)
                at = _next(text, found[1]) + 1
            else:
                _, at = _value(text, at)
            at = _next(text, at)
            at = _next(text, at + 1) if text[at] == "," else at
    except (ValueError, IndexError, RecursionError):
        return None
    return found


def _elements(text: str, begin: int) -> tuple[int, int]:
    """Where the elements of an array begin and end. Raises ValueError if it has none."""
    at = _next(text, begin)
    while True:
        _, end = _value(text, at)
        at = _next(text, end)
        if text[at] != ",":
            return begin, end
        at = _next(text, at + 1)


def _next(text: str, at: int) -> int:
    """Skip white space."""
    found = _space(text, at)
    return at if found is None else found.end()
