"""Replay data on the wire: what a request adds, and what its answer must hold then."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from slime_agl.engine.base import EngineRequest
from slime_agl.errors import InvariantError
from slime_agl.trace.replay import Experts, TopP, pack_experts

TOP_P_ASKED = "return_top_p_token_ids"
TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")
EXPERTS = "routed_experts"


def replay_fields(request: EngineRequest) -> dict[str, Any]:
    """Top-level fields that ask for routed experts; those of top-p sets stand in the sampling parameters."""
    if request.experts_width is None:
        return {}
    return {"return_routed_experts": True, "routed_experts_start_len": request.experts_from}


def wants_top_p(params: Mapping[str, Any]) -> bool:
    return bool((params.get("custom_params") or {}).get(TOP_P_ASKED))


def read_experts(meta: Mapping[str, Any], request: EngineRequest, new_tokens: int) -> Experts | None:
    """Rows for the tokens from `request.experts_from` up to the last but one, None when nothing was sampled.

    The last token was never an input, so it has no row. An engine that does not know
    `routed_experts_start_len` sends all rows; those asked for are taken from their end.

    Raises:
        InvariantError: there are none, or too few, or no whole rows.
    """
    width = request.experts_width
    if width is None or not new_tokens:
        return None
    flat = _int32(meta, (EXPERTS,))
    if flat is None:
        raise InvariantError(
            f"the answer to request {request.rid} ({new_tokens} tokens) has no routed experts although it was asked "
            "for them (return_routed_experts)"
        )
    last = request.prompt_length + new_tokens - 1
    wanted = last - request.experts_from
    rows, rest = divmod(flat.size, width)
    if rest or rows not in (wanted, last):
        raise InvariantError(
            f"the answer to request {request.rid} has {flat.size} routed experts; {wanted} tokens from position "
            f"{request.experts_from} on, of {width} experts each, have {wanted * width}"
        )
    return pack_experts(request.experts_from, width, flat[(rows - wanted) * width :])


def read_top_p(meta: Mapping[str, Any], request: EngineRequest, new_tokens: int) -> TopP | None:
    """The set of each sampled token, None when they were not asked for or nothing was sampled.

    Raises:
        InvariantError: there are none, or they do not describe `new_tokens` tokens.
    """
    if not new_tokens or not wants_top_p(request.sampling_params):
        return None
    ids, offsets = _int32(meta, TOP_P_IDS), _int32(meta, TOP_P_OFFSETS)
    if ids is None or offsets is None:
        raise InvariantError(
            f"the answer to request {request.rid} ({new_tokens} tokens) has no top-p token sets although it was asked "
            f"for them (custom_params.{TOP_P_ASKED})"
        )
    if offsets.size != new_tokens + 1:
        raise InvariantError(
            f"the answer to request {request.rid} has {offsets.size} top-p offsets, {new_tokens} tokens need "
            f"{new_tokens + 1}"
        )
    return TopP(array("i", ids.tobytes()), array("i", offsets.tobytes()))


def _int32(meta: Mapping[str, Any], names: tuple[str, ...]) -> np.ndarray | None:
    """The first of `names` that is there: base64 of little-endian int32, or a list of numbers."""
    value = next((meta[name] for name in names if meta.get(name) is not None), None)
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value), dtype="<i4").astype(np.int32, copy=False)
    return None if value is None else np.asarray(value, dtype=np.int32).reshape(-1)
