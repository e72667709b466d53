"""Decide when a request ends, and decode its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slime_agl.local.engine.backend import Finish
from slime_agl.local.engine.sampling import SamplingParams


class Decoder(Protocol):
    """Decodes ids, as a tokenizer of transformers does; it returns a list for batches only."""

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str | list[str]: ...


def _decoded(decoder: Decoder, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    text = decoder.decode(list(ids), skip_special_tokens=skip_special_tokens)
    assert isinstance(text, str)
    return text


def finish_of(
    output: Sequence[int], params: SamplingParams, eos_ids: frozenset[int], decoder: Decoder
) -> Finish | None:
    """Return the finish if the request ends with the last id of `output`. The length limit goes first, as in SGLang."""
    if len(output) >= params.max_new_tokens:
        return Finish("length")
    last = output[-1]
    if not params.ignore_eos and (last in eos_ids or last in params.stop_token_ids):
        return Finish("stop", matched=last)
    matched = _matched_string(output, params.stop, decoder)
    return None if matched is None else Finish("stop", matched=matched)


def text_of(output: Sequence[int], params: SamplingParams, finish: Finish | None, decoder: Decoder) -> str:
    """Decode `output` without its matched stop (unless `no_stop_trim`) and without an incomplete last character."""
    ids = list(output)
    matched = None if finish is None or params.no_stop_trim else finish.matched
    if isinstance(matched, int):
        ids.pop()
    text = _decoded(decoder, ids, skip_special_tokens=params.skip_special_tokens)
    if isinstance(matched, str):
        position = text.find(matched)
        text = text if position < 0 else text[:position]
    return text.rstrip("\ufffd") if finish is None else text


def _matched_string(output: Sequence[int], stops: Sequence[str], decoder: Decoder) -> str | None:
    if not stops:
        return None
    # An id decodes to at least one byte, so a stop that ends with the last id lies within these ids.
    window = max(len(stop.encode()) for stop in stops) + 4
    tail = _decoded(decoder, output[-window:], skip_special_tokens=False)
    return next((stop for stop in stops if stop in tail), None)
