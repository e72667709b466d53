"""Remove credentials from records, and account for where they were.

Removal is final, so an execution whose task or prompts held a credential cannot be rerun exactly; the account shows
which.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import accumulate
from typing import Any

from msgspec import Struct, structs

from slime_agl.record.credentials import is_named, is_value, spans
from slime_agl.record.wire import DEEPEST
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.replay import TopP
from slime_agl.trace.turn import Media, Sampled, Turn

MARK = "***"
# Replaces each token of a credential in recorded ids; no tokenizer uses it.
BLOTTED_ID = -1
# Nesting levels of a record's line around a value.
MARGIN = 10
# Places that a rerun takes its input from. It ignores errors and spans.
_NEEDED = ("task", "row", "turn", "attempt")

BytesOf = Callable[[int], bytes]


def needed_by_a_rerun(blotted: Mapping[str, int]) -> dict[str, int]:
    """Select the places of an account that a rerun would need unchanged."""
    return {place: count for place, count in blotted.items() if place.startswith(_NEEDED)}


def blot_text(text: str, place: str, account: Counter[str]) -> str:
    """Replace each credential in a text, and escape what UTF-8 cannot encode."""
    raw = text.encode("utf-8", "backslashreplace")
    found = list(spans(raw))
    if not found:
        return text if text.isascii() else raw.decode()
    account[place] += len(found)
    pieces, end = [], 0
    for start, stop in found:
        pieces += [raw[end:start].decode(), MARK]
        end = stop
    return "".join([*pieces, raw[end:].decode()])


def blot(value: object, place: str, account: Counter[str], *, above: tuple[int, ...] = ()) -> Any:
    """Convert any value to JSON-able data without credentials. Cycles and deep nesting are cut."""
    if isinstance(value, str):
        return blot_text(str(value), place, account)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return blot(value.value, place, account, above=above)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else str(value)
    if id(value) in above or len(above) >= DEEPEST - MARGIN:
        return "…"
    above = (*above, id(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Struct):
        value = structs.asdict(value)
    if isinstance(value, Mapping):
        return _mapping(value, place, account, above)
    if isinstance(value, list | tuple | set | frozenset):
        return [blot(one, place, account, above=above) for one in value]
    for spelled_out in ("tolist", "isoformat"):
        if hasattr(value, spelled_out):
            return blot(getattr(value, spelled_out)(), place, account, above=above)
    try:
        return blot_text(str(value), place, account)
    except Exception:  # an agent's own object, whose __str__ may raise anything
        return f"<{type(value).__name__}>"


def _mapping(
    value: Mapping[object, object], place: str, account: Counter[str], above: tuple[int, ...]
) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, one in value.items():
        key = blot(name, place, account) if isinstance(name, str) else str(name)
        if isinstance(one, str) and isinstance(name, str) and is_named(name) and is_value(one):
            account[place] += 1
            plain[key] = MARK
        else:
            plain[key] = blot(one, place, account, above=above)
    return plain


def blot_ledger(ledger: Ledger, bytes_of: BytesOf, account: Counter[str], *, place: str = "") -> Ledger:
    """Replace every token of a credential with BLOTTED_ID; return the same ledger if there is none.

    Searches each turn's new prompt ids and output as one text. Lengths and logprobs do not change.
    place: prefix of the account's names.
    """
    turns = [_turn(turn, bytes_of, account, f"{place}turn {turn.index}") for turn in ledger.turns]
    if all(new is old for new, old in zip(turns, ledger.turns, strict=True)):
        return ledger
    again = Ledger(ledger.rollout_id, ledger.attempt_id, full=set(ledger.full))
    for turn in turns:
        again.commit(turn)
    return again


def _turn(turn: Turn, bytes_of: BytesOf, account: Counter[str], place: str) -> Turn:
    media = turn.media
    if media is not None and (text := blot_text(media.text, f"{place} prompt", account)) != media.text:
        media = Media(text, media.images)
    pieces = [turn.new_ids, *(part.ids for part in turn.parts)]
    hidden = _hidden([bytes_of(i) for ids in pieces for i in ids], len(turn.new_ids), account, place)
    if not hidden and media is turn.media:
        return turn
    starts = list(accumulate((len(ids) for ids in pieces), initial=0))
    prompt, *outputs = (
        [at - start for at in hidden if start <= at < end] for start, end in zip(starts, starts[1:], strict=False)
    )
    parts = tuple(_part(part, places) for part, places in zip(turn.parts, outputs, strict=True))
    return structs.replace(turn, new_ids=_without(turn.new_ids, prompt), parts=parts, media=media)


def _hidden(texts: Sequence[bytes], prompt: int, account: Counter[str], place: str) -> list[int]:
    """Positions of the tokens that hold part of a credential. prompt: number of leading tokens that are not output."""
    whole = b"".join(texts)
    hidden: list[int] = []
    found = list(spans(whole))
    if not found:
        return hidden
    ends = list(accumulate(map(len, texts)))
    at = 0
    for start, stop in found:
        while ends[at] <= start:
            at += 1
        account[f"{place} {'prompt' if at < prompt else 'output'}"] += 1
        while at < len(ends) and ends[at] - len(texts[at]) < stop:
            hidden.append(at)
            at += 1
        at = max(0, at - 1)  # one token may end this credential and begin the next
    return sorted(set(hidden))


def _part(part: Sampled, places: Sequence[int]) -> Sampled:
    if not places:
        return part
    top_p = part.top_p
    if top_p is not None:  # the sets reveal the sampled tokens
        inside = [at for place in places for at in range(top_p.offsets[place], top_p.offsets[place + 1])]
        top_p = TopP(_without(top_p.ids, inside), top_p.offsets)
    return structs.replace(part, ids=_without(part.ids, places), top_p=top_p)


def _without(ids: array, places: Sequence[int]) -> array:
    if not places:
        return ids
    left = ids[:]
    for at in places:
        left[at] = BLOTTED_ID
    return left
