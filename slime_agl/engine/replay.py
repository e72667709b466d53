"""Replay data on the wire: request fields, and the parts of the answer that they make mandatory."""

from __future__ import annotations

import base64
import binascii
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.faults import WrongAnswer
from slime_agl.errors import InvariantError
from slime_agl.trace.replay import Experts, TopP, pack_experts

# The sampling parameter that requests top-p sets.
CUSTOM = "custom_params"
TOP_P_ASKED = "return_top_p_token_ids"
TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")
EXPERTS = "routed_experts"


def replay_fields(request: EngineRequest) -> dict[str, object]:
    """Top-level fields that request routed experts; top-p sets are requested in the sampling parameters."""
    return {"return_routed_experts": True, "routed_experts_start_len": request.experts_from}


def wants_top_p(params: Mapping[str, Any]) -> bool:
    return bool((params.get(CUSTOM) or {}).get(TOP_P_ASKED))


def read_experts(meta: Mapping[str, object], request: EngineRequest, rid: str, new_tokens: int) -> Experts | None:
    """Read rows for tokens `request.experts_from` up to the last but one; None if nothing was sampled.

    The last token was never an input, so it has no row. An engine that does not know `routed_experts_start_len` sends
    all rows; the requested ones are the last of them.

    Raises:
        WrongAnswer: rows are missing or incomplete, or hold values that cannot be expert ids.
    """
    width = request.experts_width
    if width is None or not new_tokens:
        return None
    flat = _int32(meta, (EXPERTS,), rid)
    if flat is None:
        raise WrongAnswer(
            rid,
            f"({new_tokens} tokens) has no routed experts although it was asked for them (return_routed_experts)",
        )
    last = request.prompt.length + new_tokens - 1
    wanted = last - request.experts_from
    rows, rest = divmod(flat.size, width)
    if rest or rows not in (wanted, last):
        raise WrongAnswer(
            rid,
            f"has {flat.size} routed experts; {wanted} tokens from position {request.experts_from} on, of {width} "
            f"experts each, have {wanted * width}",
        )
    try:
        return pack_experts(request.experts_from, width, flat[(rows - wanted) * width :])
    except InvariantError as fault:
        raise WrongAnswer(rid, f"has wrong routed experts: {fault}") from fault


def read_top_p(
    meta: Mapping[str, object], request: EngineRequest, rid: str, new_tokens: int, vocab_size: int | None
) -> TopP | None:
    """Read the top-p set of each sampled token; None if not requested or nothing was sampled.

    Raises:
        WrongAnswer: sets are missing, do not describe `new_tokens` tokens, or hold ids beyond the vocabulary.
    """
    if not new_tokens or not wants_top_p(request.sampling_params):
        return None
    ids, offsets = _int32(meta, TOP_P_IDS, rid), _int32(meta, TOP_P_OFFSETS, rid)
    if ids is None or offsets is None:
        raise WrongAnswer(
            rid,
            f"({new_tokens} tokens) has no top-p token sets although it was asked for them "
            f"(custom_params.{TOP_P_ASKED})",
        )
    if offsets.size != new_tokens + 1:
        raise WrongAnswer(rid, f"has {offsets.size} top-p offsets, {new_tokens} tokens need {new_tokens + 1}")
    if (np.diff(offsets) < 0).any():
        at = int(np.argmax(np.diff(offsets) < 0))
        raise WrongAnswer(rid, f"has top-p offsets that fall from {offsets[at]} to {offsets[at + 1]} at token {at}")
    if ids.size and (ids.min() < 0 or (vocab_size is not None and ids.max() >= vocab_size)):
        raise WrongAnswer(
            rid,
            f"has top-p sets of ids from {ids.min()} to {ids.max()}, the vocabulary has {vocab_size or 'no such'} ids",
        )
    try:
        return TopP(array("i", ids.tobytes()), array("i", offsets.tobytes()))
    except InvariantError as fault:
        raise WrongAnswer(rid, f"has wrong top-p sets: {fault}") from fault


def _int32(meta: Mapping[str, object], names: tuple[str, ...], rid: str) -> np.ndarray | None:
    """Decode the first present field of `names`: base64 of little-endian int32, or a list of numbers."""
    name = next((name for name in names if meta.get(name) is not None), None)
    if name is None:
        return None
    value = meta[name]
    try:
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), dtype="<i4").astype(np.int32, copy=False)
        found = np.asarray(value)
        if found.size == 0 and isinstance(value, list):
            return found.astype(np.int32).reshape(-1)
        if found.dtype.kind != "i" or found.min() < -(2**31) or found.max() >= 2**31:
            raise ValueError(f"it holds {found.dtype} values, or some beyond 32 bits")
    except (binascii.Error, ValueError) as fault:
        raise WrongAnswer(rid, f"has {name} that are not 32-bit integers: {fault}") from fault
    return found.astype(np.int32).reshape(-1)
