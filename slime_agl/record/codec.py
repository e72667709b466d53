"""Encode a ledger as plain data and decode it; arrays become base64 of little-endian bytes."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping
from typing import TypedDict

from slime_agl.record.wire import (
    FLAT,
    INTEGER,
    INTEGER_OR_NONE,
    NUMBER,
    TEXT,
    fields_of,
    listed,
    mapping,
    one_of,
    text,
    texts,
)
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.replay import EXPERT_TYPES, Experts, TopP
from slime_agl.trace.turn import Media, Sampled, Turn

FORMAT = 1
# Segmenting a tree is quadratic in its turns, so cap them well above what any agent makes.
MOST_TURNS = 20_000
EXPERT_CODES = tuple(code for code, _ in EXPERT_TYPES)


def encode_array(values: array) -> str:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")


def decode_array(typecode: str, text: str) -> array:
    values = array(typecode)
    values.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def encode_ledger(ledger: Ledger) -> dict[str, object]:
    """Plain data (JSON-able) that `decode_ledger` turns into an equal ledger."""
    return {
        "format": FORMAT,
        "rollout_id": ledger.rollout_id,
        "attempt_id": ledger.attempt_id,
        "turns": [_encode_turn(turn) for turn in ledger.turns],
        "full": sorted(ledger.full),
    }


def decode_ledger(data: Mapping[str, object]) -> Ledger:
    """Rebuild a ledger.

    Raises:
        ValueError, KeyError, TypeError, OverflowError, InvariantError: `encode_ledger` did not produce the data.
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"ledger has format {data.get('format')!r}, this version reads {FORMAT}")
    turns = listed(data["turns"], "turns")
    if len(turns) > MOST_TURNS:
        raise ValueError(f"ledger has {len(turns)} turns, at most {MOST_TURNS} are read")
    ledger = Ledger(text(data["rollout_id"], "rollout_id"), text(data["attempt_id"], "attempt_id"))
    for turn in turns:
        ledger.commit(_decode_turn(mapping(turn, "turn")))
    for entry in listed(data.get("full", []), "full"):
        index = one_of(entry, "full", INTEGER)
        if index not in range(len(turns)):
            raise ValueError(f"turn {index} is listed as full, the ledger has {len(turns)} turns")
        ledger.full.add(index)
    return ledger


_TURN_SCALARS = {
    **{"index": INTEGER, "parent": INTEGER_OR_NONE},
    **dict.fromkeys(("turn_id", "fork", "untrained", "model"), TEXT),
    **dict.fromkeys(("started", "ended", "engine_seconds"), NUMBER),
}
_PART_SCALARS = {
    **{"finish": TEXT, "matched": FLAT, "weight_version": TEXT, "latency": NUMBER},
    **{"prompt_tokens": INTEGER, "cached_tokens": INTEGER},
}


def _encode_turn(turn: Turn) -> dict[str, object]:
    data = {name: getattr(turn, name) for name in _TURN_SCALARS}
    data["new_ids"] = encode_array(turn.new_ids)
    if turn.media is not None:
        data["media"] = [turn.media.text, list(turn.media.images)]
    data["parts"] = [
        {name: getattr(part, name) for name in _PART_SCALARS}
        | {"ids": encode_array(part.ids), "logprobs": encode_array(part.logprobs), "meta": dict(part.meta)}
        | _encode_replay(part)
        for part in turn.parts
    ]
    return data


class Replay(TypedDict, total=False):
    """Replay data of `Sampled`."""

    experts: Experts
    top_p: TopP


def _decode_turn(data: Mapping[str, object]) -> Turn:
    parts = tuple(
        Sampled(
            ids=decode_array("i", text(part["ids"], "ids")),
            logprobs=decode_array("d", text(part["logprobs"], "logprobs")),
            meta=mapping(part["meta"], "meta"),
            **_decode_replay(part),
            **fields_of(part, _PART_SCALARS),
        )
        for part in (mapping(part, "part") for part in listed(data["parts"], "parts"))
    )
    media = None
    if "media" in data:
        rendered, images = listed(data["media"], "media")
        media = Media(text(rendered, "media"), texts(images, "images"))
    new_ids = decode_array("i", text(data["new_ids"], "new_ids"))
    return Turn(new_ids=new_ids, parts=parts, media=media, **fields_of(data, _TURN_SCALARS))


def _encode_replay(part: Sampled) -> dict[str, object]:
    data: dict[str, object] = {}
    if (experts := part.experts) is not None:
        data["experts"] = [experts.start, experts.width, experts.ids.typecode, encode_array(experts.ids)]
    if part.top_p is not None:
        data["top_p"] = [encode_array(part.top_p.ids), encode_array(part.top_p.offsets)]
    return data


def _decode_replay(part: Mapping[str, object]) -> Replay:
    data: Replay = {}
    if "experts" in part:
        start, width, code, packed = listed(part["experts"], "experts")
        kind = text(code, "experts")
        if kind not in EXPERT_CODES:
            raise ValueError(f"routed experts are packed as {kind!r}, which is not one of {', '.join(EXPERT_CODES)}")
        first, each = one_of(start, "experts", INTEGER), one_of(width, "experts", INTEGER)
        data["experts"] = Experts(first, each, decode_array(kind, text(packed, "experts")))
    if "top_p" in part:
        ids, offsets = texts(part["top_p"], "top_p")
        data["top_p"] = TopP(decode_array("i", ids), decode_array("i", offsets))
    return data
