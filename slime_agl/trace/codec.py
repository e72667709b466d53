"""A ledger as plain data and back: arrays become base64 of little-endian bytes."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from slime_agl.trace.ledger import Ledger
from slime_agl.trace.replay import Experts, TopP
from slime_agl.trace.turn import Media, Sampled, Turn

FORMAT = 1


def encode_array(values: array) -> str:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")


def decode_array(typecode: str, text: str) -> array:
    values = array(typecode)
    values.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def encode_ledger(ledger: Ledger) -> dict[str, Any]:
    """Plain data (JSON-able) that `decode_ledger` turns into an equal ledger."""
    return {
        "format": FORMAT,
        "rollout_id": ledger.rollout_id,
        "attempt_id": ledger.attempt_id,
        "turns": [_encode_turn(turn) for turn in ledger.turns],
    }


def decode_ledger(data: Mapping[str, Any]) -> Ledger:
    """Rebuild a ledger. Raises ValueError for a format this version does not read."""
    if data.get("format") != FORMAT:
        raise ValueError(f"ledger has format {data.get('format')!r}, this version reads {FORMAT}")
    ledger = Ledger(data["rollout_id"], data["attempt_id"])
    for turn in data["turns"]:
        ledger.commit(_decode_turn(turn))
    return ledger


_TURN_SCALARS = ("index", "parent", "turn_id", "fork", "untrained", "model", "started", "ended", "engine_seconds")
_PART_SCALARS = ("finish", "matched", "prompt_tokens", "cached_tokens", "weight_version", "latency")


def _encode_turn(turn: Turn) -> dict[str, Any]:
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


def _decode_turn(data: Mapping[str, Any]) -> Turn:
    parts = tuple(
        Sampled(
            ids=decode_array("i", part["ids"]),
            logprobs=decode_array("d", part["logprobs"]),
            meta=dict(part["meta"]),
            **_decode_replay(part),
            **{name: part[name] for name in _PART_SCALARS},
        )
        for part in data["parts"]
    )
    scalars = {name: data[name] for name in _TURN_SCALARS}
    text, images = data.get("media", ("", ()))
    media = Media(text, tuple(images)) if images else None
    return Turn(new_ids=decode_array("i", data["new_ids"]), parts=parts, media=media, **scalars)


def _encode_replay(part: Sampled) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if (experts := part.experts) is not None:
        data["experts"] = [experts.start, experts.width, experts.ids.typecode, encode_array(experts.ids)]
    if part.top_p is not None:
        data["top_p"] = [encode_array(part.top_p.ids), encode_array(part.top_p.offsets)]
    return data


def _decode_replay(part: Mapping[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if "experts" in part:
        start, width, kind, text = part["experts"]
        data["experts"] = Experts(start, width, decode_array(kind, text))
    if "top_p" in part:
        data["top_p"] = TopP(*(decode_array("i", text) for text in part["top_p"]))
    return data
