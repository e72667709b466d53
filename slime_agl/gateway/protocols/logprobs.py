"""Log probabilities of sampled tokens and their alternatives, in each protocol's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from slime_agl.trace.turn import Turn

Decode = Callable[[list[int]], str]
TokenBytes = Callable[[list[int]], list[bytes]]


def chat_logprobs(turn: Turn, token_bytes: TokenBytes) -> list[dict[str, Any]]:
    """Entries of `logprobs.content`, also used by the Responses protocol. A token may be part of a character."""
    ids, alternatives = turn.output_ids().tolist(), list(_alternatives(turn))
    known = list({*ids, *(other for others in alternatives for _, other, *_ in others)})
    spelt = dict(zip(known, token_bytes(known), strict=True))
    return [
        _entry(spelt[token], logprob) | {"top_logprobs": [_entry(spelt[other], value) for value, other, *_ in others]}
        for token, logprob, others in zip(ids, turn.output_logprobs(), alternatives, strict=True)
    ]


def completion_logprobs(turn: Turn, decode: Decode, offset: int) -> dict[str, Any]:
    """The `logprobs` object of legacy completions. offset: characters before the first sampled token."""
    texts = [decode([token]) for token in turn.output_ids()]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    top = [{decode([other]): value for value, other, *_ in others} for others in _alternatives(turn)]
    return {
        "tokens": texts,
        "token_logprobs": turn.output_logprobs().tolist(),
        "top_logprobs": top if any(top) else None,
        "text_offset": offsets,
    }


def _entry(raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def _alternatives(turn: Turn) -> Iterator[list[Any]]:
    """SGLang's [logprob, id, text] triples per sampled token; empty if not requested."""
    for part in turn.parts:
        found = part.meta.get("output_top_logprobs") or ()
        for at in range(len(part.ids)):
            yield (found[at] or []) if at < len(found) else []
