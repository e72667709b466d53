"""Replay data of an engine answer: top-p sets and routed experts, as int32 numpy arrays.

A top-p set is ragged: token i of a response was sampled from ids[offsets[i]:offsets[i + 1]],
so offsets has one entry more than the response has tokens and starts at 0. Routed experts are
rows of shape (num_layers, moe_router_topk), one per token except the last.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

_IDS_KEYS = ("top_p_token_ids", "top_p_kept_token_ids")
_OFFSETS_KEYS = ("top_p_token_offsets", "top_p_kept_token_offsets")


class TokenSets(NamedTuple):
    """Top-p sets as a ragged array."""

    ids: np.ndarray
    offsets: np.ndarray


def int32(values: Any) -> np.ndarray:
    """A flat int32 array of the numbers in `values`: a sequence, an array or a tensor."""
    return np.asarray(values, dtype=np.int32).reshape(-1)


def decode_int32(meta_info: Mapping[str, Any], *keys: str) -> np.ndarray | None:
    """Decode the first of `keys` present: base64 text, little-endian bytes, or numbers. None if absent or null."""
    value = next((meta_info[key] for key in keys if key in meta_info), None)
    if isinstance(value, str):
        value = base64.b64decode(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(bytes(value), dtype="<i4").astype(np.int32)
    return None if value is None else int32(value)


def read_top_p(meta_info: Mapping[str, Any], new_tokens: int) -> TokenSets | None:
    """The top-p sets of `new_tokens` tokens, or None if the engine sent none.

    Raises:
        ValueError: one of the two arrays is missing, or they do not describe `new_tokens` tokens.
    """
    ids = decode_int32(meta_info, *_IDS_KEYS)
    offsets = decode_int32(meta_info, *_OFFSETS_KEYS)
    if ids is None and offsets is None:
        return None
    if ids is None or offsets is None:
        raise ValueError(f"engine answer has top-p {'offsets without ids' if ids is None else 'ids without offsets'}")
    if not offsets.size or offsets[0] != 0:
        raise ValueError(f"top-p offsets begin with {offsets[:1].tolist()}, they must begin with 0")
    if offsets[-1] != ids.size:
        raise ValueError(f"top-p offsets end at {offsets[-1]}, there are {ids.size} ids")
    if offsets.size != new_tokens + 1:
        raise ValueError(
            f"top-p offsets have {offsets.size} entries, {new_tokens} sampled tokens need {new_tokens + 1}"
        )
    return TokenSets(ids, offsets)


def join_top_p(ids: Any, offsets: Any, new: TokenSets) -> TokenSets:
    """Append `new` to the sets of a sample, None being none."""
    ids = int32([] if ids is None else ids)
    offsets = int32([0] if offsets is None else offsets)
    return TokenSets(np.concatenate([ids, new.ids]), np.concatenate([offsets, new.offsets[1:] + offsets[-1]]))


def pad_top_p(ids: Any, offsets: Any, tokens: int) -> TokenSets:
    """Append `tokens` empty sets, for tokens that were not sampled.

    Raises:
        ValueError: the sample has no sets to append to.
    """
    if ids is None or offsets is None:
        raise ValueError("top-p offsets without ids: there is nothing to append empty sets to")
    offsets = int32(offsets)
    if not offsets.size:
        raise ValueError("top-p offsets are empty, they must begin with 0")
    return TokenSets(int32(ids), np.concatenate([offsets, np.full(tokens, offsets[-1], dtype=np.int32)]))


def check_top_p(ids: Any, offsets: Any, response_length: int) -> None:
    """Raise ValueError unless both are None, or both describe `response_length` tokens."""
    if ids is None and offsets is None:
        return
    if ids is None or offsets is None:
        raise ValueError(f"sample has top-p {'offsets without ids' if ids is None else 'ids without offsets'}")
    offsets = int32(offsets)
    if offsets.size != response_length + 1:
        raise ValueError(
            f"top-p offsets have {offsets.size} entries, "
            f"a response of {response_length} tokens needs {response_length + 1}"
        )
    count = np.asarray(ids).size
    if offsets[-1] != count:
        raise ValueError(f"top-p offsets end at {offsets[-1]}, there are {count} ids")


def join_experts(existing: Any, meta_info: Mapping[str, Any], args: Any, tokens: int) -> Any:
    """The routed experts of a sample of `tokens` tokens after an engine answer.

    The answer's rows start at `routed_experts_start_len`; earlier rows come from `existing`, which is returned
    unchanged if the answer has none.

    Raises:
        ValueError: the answer does not complete `tokens` - 1 rows, or `existing` is too short.
    """
    flat = decode_int32(meta_info, "routed_experts")
    if flat is None:
        return existing
    if args is None:
        raise ValueError("routed experts need slime's args (num_layers, moe_router_topk) to be decoded")
    start = int(meta_info.get("routed_experts_start_len", 0) or 0)
    if start < 0:
        raise ValueError(f"routed_experts_start_len is {start}, it must not be negative")
    rows = max(0, tokens - 1 - start)
    shape = (rows, args.num_layers, args.moe_router_topk)
    if flat.size != np.prod(shape, dtype=np.int64):
        raise ValueError(
            f"engine answer has {flat.size} routed experts, {tokens} tokens from row {start} on need shape {shape}"
        )
    new = flat.reshape(shape)
    if start == 0:
        return new
    if existing is None:
        raise ValueError(f"routed experts start at row {start}, the sample holds none to join them to")
    earlier = np.asarray(existing, dtype=np.int32)
    if earlier.shape[0] < start:
        raise ValueError(f"routed experts start at row {start}, the sample holds only {earlier.shape[0]} rows")
    return np.concatenate([earlier[:start], new], axis=0)
