"""Prompt scoring on the wire of SGLang's `/generate`: log p of ids that somebody else sampled.

A request samples nothing and asks for the logprobs of its own prompt. The answer's `input_token_logprobs` has a
[logprob, id, text] per prompt token from `logprob_start_len` on. The first of them has no logprob, wherever the list
begins, so a request begins one token before those that it needs, and the answer is read from its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.faults import WrongAnswer
from slime_agl.engine.generate import HIGHEST_LOGPROB, LOWEST_LOGPROB, NUMBERS, parse_answer
from slime_agl.engine.id_text import IdText
from slime_agl.trace.turn import logprob_array, token_array

FIELD, FIRST_ASKED = "input_token_logprobs", "logprob_start_len"
# Explicit, so that a server's own defaults do not count. SGLang scores prompts at temperature 1 whatever it is told.
UNSCALED = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
SAMPLES_NOTHING = {**UNSCALED, "max_new_tokens": 0, "skip_special_tokens": False}


def score_request(ids: Sequence[int], count: int, rid: str) -> EngineRequest:
    """A request for log p of the last `count` of `ids`, of which at least one comes before them."""
    return EngineRequest(
        prompt=IdText().extended(token_array(ids)),
        sampling_params=SAMPLES_NOTHING,
        rid=rid,
        session_key=rid,
        extra={FIRST_ASKED: len(ids) - count - 1},
    )


def text_request(text: str, rid: str) -> list[bytes]:
    """The body of a request that has the server encode a text, and return its ids with their logprobs."""
    fields = {"text": text, "sampling_params": SAMPLES_NOTHING, "return_logprob": True, FIRST_ASKED: 0, "rid": rid}
    return [orjson.dumps(fields)]


def read_scores(body: bytes, ids: Sequence[int], count: int, rid: str, *, vocab_size: int | None = None) -> array:
    """Return log p of the last `count` of `ids`, from the body of a 200 answer to the request `rid`.

    vocab_size: of the model that scored, None if unknown.

    Raises:
        WrongAnswer: it answers another request, has too few scores, scores of other ids, or some that cannot be true.
    """
    said, logprobs = _columns(body, rid)
    if not count <= len(said) <= len(ids):
        raise WrongAnswer(
            rid, f"has {len(said)} entries in {FIELD}, the request has {len(ids)} ids and needs scores of {count}"
        )
    said, logprobs = said[len(said) - count :], logprobs[len(logprobs) - count :]
    require_same(said, ids[len(ids) - count :], rid, vocab_size)
    if not set(map(type, logprobs)) <= NUMBERS:
        at = next(at for at, value in enumerate(logprobs) if type(value) not in NUMBERS)
        raise WrongAnswer(
            rid,
            f"has the logprob {logprobs[at]!r:.80} at token {at} of {count}, it must be a number (null is how NaN "
            "travels: look for it in the weights)",
        )
    values = np.asarray(logprobs, dtype=np.float64)
    # JSON has no NaN, so comparisons suffice.
    wrong = np.flatnonzero((values < LOWEST_LOGPROB) | (values > HIGHEST_LOGPROB))
    if wrong.size:
        at = int(wrong[0])
        raise WrongAnswer(
            rid, f"has the logprob {values[at]:g} at token {at} of {count}; one lies between {LOWEST_LOGPROB:g} and 0"
        )
    return logprob_array(values.tolist())


def read_ids(body: bytes, rid: str) -> list[int]:
    """Return the ids that the server encoded a text to. Raises WrongAnswer without any."""
    ids, _ = _columns(body, rid)
    return ids


def require_same(said: Sequence[Any], sent: Sequence[int], rid: str, vocab_size: int | None = None) -> None:
    """Raise WrongAnswer unless the ids of an answer are those that were sent.

    SGLang writes 0 for the last id of its vocabulary and for all beyond it.
    """
    if list(said) == list(sent):
        return
    clipped = None if vocab_size is None else vocab_size - 1
    for at, (mine, its) in enumerate(zip(sent, said, strict=True)):
        if its != mine and not (its == 0 and clipped is not None and mine >= clipped):
            raise WrongAnswer(rid, f"scores the id {its!r:.80} at token {at} of {len(sent)}, it was sent {mine}")


def _columns(body: bytes, rid: str) -> tuple[list[Any], list[Any]]:
    _, meta = parse_answer(body, rid)
    entries = meta.get(FIELD)
    if not isinstance(entries, list) or not entries:
        raise WrongAnswer(
            rid,
            f"has no {FIELD}; return_logprob and {FIRST_ASKED} must reach an SGLang server unchanged",
        )
    try:
        return [entry[1] for entry in entries], [entry[0] for entry in entries]
    except (TypeError, LookupError):
        raise WrongAnswer(rid, f"has entries in {FIELD} that are not [logprob, id]: {entries[0]!r:.80}") from None
