"""Parse request bodies that repeat an earlier one of their attempt and add to it.

Agents send the whole conversation with every turn. Parsing it again, and releasing what was parsed, costs in proportion
to the history: 0.72 ms for the 470 KB of turn 400. So the end of the conversation is noted by its place; a body that
begins with the same bytes, and ends with the same ones after the conversation, costs a comparison with those (0.02 ms),
and the parsing and hashing of what it adds. The hash is that of the whole body, and recognises retries.

The result is the same as without this (see `plain`), since JSON between two elements of an array means the same
whatever comes before; but elements seen before are the same objects, so nobody may change them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from slime_agl.lru import LRU

# Bytes below which parsing costs hardly more than recognising: 45 us and 35 us at this size.
SHORT = 32 * 1024
# Bodies of one attempt that may be continued: a conversation has the latest, and subagents have some.
KEPT = 4
# Some clients rewrite the conversation in each request. After so many bodies that nothing continued, none is noted.
MOST_MISSES = 4
# Bodies of up to this size are kept for comparison, which takes 2 us for 80 KB; hashing takes 54. Longer ones, with
# images, would take too much memory.
LARGEST_HELD = 4 * 1024**2
# Fields other than the conversation, tools above all, that attempts share.
SHARED = 512

_value = json.JSONDecoder().raw_decode
_space = re.compile(r"[ \t\n\r]*").match


@dataclass(slots=True)
class _Noted:
    """A body that later ones may continue.

    length: bytes up to the end of its array's last element. hashed: those bytes. rest: the bytes from there on.
    fields: the body; its array is in `elements` instead. held: a body that begins with the same bytes, or None.
    """

    array: str
    length: int
    hashed: Any
    rest: bytes
    fields: dict[str, Any]
    elements: list[Any]
    held: bytes | None

    def begins(self, raw: bytes, array: str) -> bool:
        """Return True if a body continues this one, as far as its bytes can tell."""
        if self.array != array or not raw.startswith(b",", self.length) or not raw.endswith(self.rest):
            return False
        if self.held is not None:
            return raw.startswith(memoryview(self.held)[: self.length])
        return sha256(memoryview(raw)[: self.length]).digest() == self.hashed.digest()


class Seen:
    """Bodies that one attempt sent. checked: leading elements of the array that passed validation (see `unchecked`)."""

    __slots__ = ("checked", "misses", "noted")

    def __init__(self) -> None:
        self.noted: list[_Noted] = []
        self.checked: list[Any] = []
        self.misses = 0

    def unchecked(self, elements: list[Any]) -> list[Any]:
        """The elements, without those at the beginning that were checked in the last body: 0.15 ms for 400 turns."""
        count = len(self.checked)
        return elements[count:] if elements[:count] == self.checked else elements

    def accept(self, elements: list[Any]) -> None:
        """Note the elements as checked, if they are held anyway: those of short bodies are new objects each time."""
        if self.noted:
            self.checked = list(elements)

    def note(self, noted: _Noted, continued: _Noted | None = None) -> None:
        """Note a body, which may be the continuation of another: one body is held for that and what it continued."""
        if continued is not None and continued.held is not None:
            shared = continued.held
            for earlier in self.noted:
                if earlier.held is shared and earlier.length <= continued.length:
                    earlier.held = noted.held
        self.noted = [*self.noted, noted][-KEPT:]


class Repeats:
    """Parses the bodies of all attempts."""

    def __init__(self) -> None:
        self._shared: LRU[tuple[bytes, bytes], tuple[bytes, dict[str, Any]]] = LRU(SHARED)

    def parse(self, raw: bytes, array: str, seen: Seen) -> tuple[Any, Hashable]:
        """Return the parsed body, and a value that equal bodies of an attempt have in common.

        array: the field with the conversation; '' if there is none.

        Raises:
            orjson.JSONDecodeError: the body is not JSON.
        """
        if len(raw) < SHORT or not array:
            return plain(raw), hash(raw)
        longest_first = sorted(seen.noted, key=lambda noted: -noted.length)
        found = next((noted for noted in longest_first if noted.begins(raw, array)), None)
        if found is not None and (known := self._continued(raw, array, found, seen)) is not None:
            return known
        body = plain(raw)
        self._note(raw, array, body, seen)
        return body, sha256(raw).digest()

    def _continued(self, raw: bytes, array: str, found: _Noted, seen: Seen) -> tuple[Any, Hashable] | None:
        """See `parse`; parses what a body adds to an earlier one. None if that is not one or more elements."""
        end = len(raw) - len(found.rest)
        try:
            added = plain(b"[" + raw[found.length + 1 : end] + b"]")
        except orjson.JSONDecodeError:
            return None
        if not added:
            return None
        elements = [*found.elements, *added]
        hashed = found.hashed.copy()
        hashed.update(memoryview(raw)[found.length : end])
        seen.note(_Noted(array, end, hashed, found.rest, found.fields, elements, _held(raw)), found)
        seen.misses = 0
        whole = hashed.copy()
        whole.update(found.rest)
        return {**found.fields, array: list(elements)}, whole.digest()

    def _note(self, raw: bytes, array: str, body: Any, seen: Seen) -> None:
        if seen.misses >= MOST_MISSES or not isinstance(body, dict) or not isinstance(body.get(array), list):
            return
        seen.misses += 1
        place = _place(raw, array)
        if place is None:
            return
        begin, end = place
        key = raw[:begin], raw[end:]
        known = self._shared.used(key)
        if known is None:
            known = self._shared[key] = key[1], {**body, array: None}
        seen.note(_Noted(array, end, sha256(memoryview(raw)[:end]), *known, list(body[array]), _held(raw)))


def _held(raw: bytes) -> bytes | None:
    return raw if len(raw) <= LARGEST_HELD else None


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
