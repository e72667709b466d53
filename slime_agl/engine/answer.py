"""The strict door for `/generate` answers: what passes belongs to its request, agrees with itself and can be true.

Fields that an engine or a router leaves out are not missed; fields that are there must be right. Every rule says both
numbers. A token costs a few C-level passes over its list; nothing loops over tokens in Python.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import orjson

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.faults import WrongAnswer
from slime_agl.engine.replay import CUSTOM, read_experts, read_top_p, wants_top_p
from slime_agl.engine.wire import refuse, words_of
from slime_agl.trace.turn import ABORT, LENGTH, STOP, Sampled, logprob_array, token_array

OWN_PLACES = ("routed_experts", "top_p_", "output_top_")
ALTERNATIVES, ALTERNATIVES_ASKED = "output_top_logprobs", "top_logprobs_num"
LONGEST_SCALAR, MOST_FIELDS = 256, 128
# Renormalised probabilities can exceed 1 by a few ulps of float32, which are 1.2e-7 each.
HIGHEST_LOGPROB = 1e-6
# A softmax in float32 samples nothing below e^-104; before the temperature is applied, that is 104 times it. SGLang
# writes log 0 as the lowest float (-3.4e38): a token that cannot have been sampled.
LOWEST_LOGPROB = -10_000.0
LARGEST_ID = 2**31 - 1
# What SGLang says matched when it sampled an id beyond the vocabulary, which it replaces by a stop id.
NAN_MATCHED = "NaN happened"
INTEGER, NUMBERS, SCALARS = {int}, {int, float}, {bool, int, float}
DIGITS = b",-0123456789"
# Fewer values than these are compared in less time than numpy takes to begin.
FEW = 256
# What an answer can have in bytes: [logprob, id, null], id and text of a token (the longest have some hundred bytes);
# an alternative; the entry of a prompt token, from engines that send those too; and the rest of it.
BYTES_OF_A_TOKEN, ALTERNATIVE_BYTES, PROMPT_TOKEN_BYTES, BYTES_OF_AN_ANSWER = 1024, 256, 64, 1 << 20
BASE64_INT32, TOP_P_IDS_OF_A_TOKEN = 6, 4096
UNLIMITED = 1 << 16


def read_answer(
    body: bytes, request: EngineRequest, rid: str, *, vocab_size: int | None = None, latency: float = 0.0
) -> Sampled:
    """Parse the body of a 200 answer to `request`, which was sent under the id `rid`.

    vocab_size: ids that the model can sample, None when unknown.

    Raises:
        WrongAnswer: it is no answer to this request, holds no logprobs, contradicts itself, or cannot be true;
            or it lacks replay data that was asked for.
        EngineRejected: it aborts because of a bad request.
        TryAgain: it aborts because of a passing fault of the worker.
    """
    answer, meta = _parsed(body, request, rid)
    finish, matched = _finish(meta.get("finish_reason"), request, rid, vocab_size)
    ids, logprobs = _tokens(answer, meta, rid, vocab_size)
    limit = request.sampling_params.get("max_new_tokens")
    if limit is not None and len(ids) > limit:
        raise WrongAnswer(rid, f"has {len(ids)} tokens, max_new_tokens is {limit}")
    if not finish:
        finish = LENGTH if limit is not None and len(ids) >= limit else STOP
    return Sampled(
        ids=ids,
        logprobs=logprobs,
        finish=finish,
        matched=matched,
        prompt_tokens=_prompt_tokens(meta, request, rid),
        cached_tokens=_count(meta, "cached_tokens", rid) or 0,
        weight_version=_weight_version(meta, rid),
        latency=latency,
        meta=_kept(meta, request, rid),
        experts=None if request.experts_width is None else read_experts(meta, request, rid, len(ids)),
        top_p=read_top_p(meta, request, rid, len(ids), vocab_size) if CUSTOM in request.sampling_params else None,
    )


def largest_answer(request: EngineRequest) -> int:
    """Bytes that an answer to this request can have at most, JSON and base64 included."""
    new = request.sampling_params.get("max_new_tokens") or UNLIMITED
    a_token = BYTES_OF_A_TOKEN + ALTERNATIVE_BYTES * (request.extra.get(ALTERNATIVES_ASKED) or 0)
    if CUSTOM in request.sampling_params and wants_top_p(request.sampling_params):
        a_token += BASE64_INT32 * TOP_P_IDS_OF_A_TOKEN
    routed = BASE64_INT32 * (request.experts_width or 0)
    return BYTES_OF_AN_ANSWER + new * a_token + (request.prompt_length + new) * (routed + PROMPT_TOKEN_BYTES)


def _parsed(body: bytes, request: EngineRequest, rid: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The answer and its `meta_info`, once it is known to be this request's."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise WrongAnswer(
            rid, f"(HTTP 200, {len(body)} bytes) is no JSON: {fault}; it reads {words_of(body)[:200]!r}", lost=True
        ) from fault
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
        raise WrongAnswer(
            rid,
            f"(HTTP 200) has no `meta_info`: {words_of(body)[:200]!r}; the address must be that of an sgl-router or an "
            "SGLang server",
            lost=True,
        )
    said = meta.get("id")
    if said is not None and said != rid:
        raise WrongAnswer(rid, f"has the id {_shown(said)}: it belongs to another request", lost=True)
    return answer, meta


def _finish(
    reason: Any, request: EngineRequest, rid: str, vocab_size: int | None
) -> tuple[str, int | str | None]:  # fmt: skip
    """Return finish ('' when the engine gave none that is known) and what matched."""
    if reason is None or isinstance(reason, str):
        reason = {"type": reason}
    elif not isinstance(reason, dict):
        raise WrongAnswer(rid, f"has the finish_reason {_shown(reason)}, it must be an object or a string")
    kind, status, matched = reason.get("type"), reason.get("status_code"), reason.get("matched")
    if not isinstance(kind, (str, type(None))):
        raise WrongAnswer(rid, f"has the finish_reason.type {_shown(kind)}, it must be a string")
    if kind == ABORT and status is not None:
        if type(status) is not int:
            raise WrongAnswer(rid, f"has the finish_reason.status_code {_shown(status)}, it must be an integer")
        if status >= 400:
            refuse(status, str(reason.get("message") or reason.get("err_type") or "aborted"), request)
    return (kind if kind in (STOP, LENGTH, ABORT) else ""), _matched(matched, request, rid, vocab_size)


def _matched(matched: Any, request: EngineRequest, rid: str, vocab_size: int | None) -> int | str | None:
    if matched is None:
        return None
    if isinstance(matched, str):
        if matched == NAN_MATCHED and matched not in (request.sampling_params.get("stop") or ()):
            raise WrongAnswer(
                rid, f"ends with {NAN_MATCHED!r}: the engine sampled from NaN; look for it in the weights"
            )
        return matched
    ids = matched if isinstance(matched, list) else [matched]
    if not ids or set(map(type, ids)) != INTEGER:
        raise WrongAnswer(rid, f"has the finish_reason.matched {_shown(matched)}, it must be a stop id or a string")
    return _known_ids(ids, "finish_reason.matched", rid, vocab_size)[-1]


def _tokens(
    answer: Mapping[str, Any], meta: Mapping[str, Any], rid: str, vocab_size: int | None
) -> tuple[array, array]:
    """Ids and logprobs, which are all that is read of the tokens; what else the answer says of them agrees."""
    entries, count = meta.get("output_token_logprobs"), _count(meta, "completion_tokens", rid)
    output_ids = answer.get("output_ids")
    if entries is None:
        if said := count or (len(output_ids) if isinstance(output_ids, list) else 0):
            raise WrongAnswer(
                rid,
                f"has {said} tokens and no output_token_logprobs; ids and logprobs are read from there, so "
                "return_logprob must reach the worker unchanged",
            )
        entries = []
    ids, logprobs = _columns(entries, rid)
    length = _count(meta, "output_token_logprobs_length", rid)
    for name, said in (("completion_tokens", count), ("output_token_logprobs_length", length)):
        if said is not None and said != len(ids):
            raise WrongAnswer(rid, f"has {len(ids)} entries in output_token_logprobs, {name} says {said}")
    _integers(ids, output_ids, rid)
    values = _numbers(logprobs, rid)
    return _known_ids(ids, "output_token_logprobs", rid, vocab_size), values


def _columns(entries: Any, rid: str) -> tuple[list[Any], list[Any]]:
    """Ids and logprobs of the [logprob, id, ...] entries, of any type."""
    if not isinstance(entries, list):
        raise WrongAnswer(rid, f"has output_token_logprobs of type {type(entries).__name__}, it must be a list")
    try:
        return [entry[1] for entry in entries], [entry[0] for entry in entries]
    except (TypeError, LookupError):
        at = next(at for at, entry in enumerate(entries) if not isinstance(entry, list) or len(entry) < 2)
    raise WrongAnswer(
        rid,
        f"has entry {at} of {len(entries)} in output_token_logprobs, {_shown(entries[at])}, which is no [logprob, id]",
    )


def _integers(ids: list[Any], output_ids: Any, rid: str) -> None:
    """Both hold the same integers. Written as JSON, which is the fastest that tells 1 from true and 1.0."""
    written = orjson.dumps(ids)
    if written[1:-1].translate(None, DIGITS):
        at = next(at for at, token in enumerate(ids) if type(token) is not int)
        raise WrongAnswer(rid, f"has the id {_shown(ids[at])} at token {at} of {len(ids)}, it must be an integer")
    if output_ids is None or orjson.dumps(output_ids) == written:
        return
    if not isinstance(output_ids, list):
        raise WrongAnswer(rid, f"has output_ids of type {type(output_ids).__name__}, it must be a list")
    if len(output_ids) != len(ids):
        raise WrongAnswer(rid, f"has {len(ids)} entries in output_token_logprobs and {len(output_ids)} output_ids")
    at = next(at for at, token in enumerate(output_ids) if type(token) is not int or token != ids[at])
    raise WrongAnswer(
        rid, f"has the id {ids[at]} at token {at} in output_token_logprobs and {_shown(output_ids[at])} in output_ids"
    )


def _numbers(logprobs: list[Any], rid: str) -> array:
    """The logprobs as an array, each a number that a sampled token can have."""
    try:
        values = logprob_array(logprobs)
    except TypeError:
        values = None
    low, high = (0.0, 0.0) if values is None else _ends(logprobs, values)
    # An array takes false for 0, which else is as good as never the logprob.
    if values is None or (high == 0 and not NUMBERS.issuperset(map(type, logprobs))):
        at = next(at for at, value in enumerate(logprobs) if type(value) not in NUMBERS)
        raise WrongAnswer(
            rid,
            f"has the logprob {_shown(logprobs[at])} at token {at} of {len(logprobs)}, it must be a number (null is how "
            "NaN travels: look for it in the weights or the sampling parameters)",
        )
    # NaN is no JSON, so that comparing is enough.
    if low < LOWEST_LOGPROB or high > HIGHEST_LOGPROB:
        at = next(at for at, value in enumerate(values) if not LOWEST_LOGPROB <= value <= HIGHEST_LOGPROB)
        raise WrongAnswer(
            rid,
            f"has the logprob {_shown(logprobs[at])} at token {at} of {len(values)}; a sampled token has one between "
            f"{LOWEST_LOGPROB:g} and 0",
        )
    return values


def _known_ids(ids: list[int], where: str, rid: str, vocab_size: int | None) -> array:
    """The ids as an array, all in the vocabulary."""
    beyond = vocab_size or LARGEST_ID
    try:
        packed = token_array(ids)
    except OverflowError:
        packed = None
    low, high = (-1, -1) if packed is None else _ends(ids, packed)
    if packed is None or low < 0 or high >= beyond:
        wrong = next(token for token in ids if not 0 <= token < beyond)
        limit = f"the vocabulary has {vocab_size} ids" if vocab_size else f"ids end at {LARGEST_ID}"
        raise WrongAnswer(rid, f"has the id {wrong} in {where}, {limit}")
    return packed


def _ends(values: list[Any], packed: array) -> tuple[float, float]:
    """The lowest and the highest, 0 and 0 of none. packed: the same values."""
    if len(values) < FEW:
        return (min(values), max(values)) if values else (0, 0)
    found = np.asarray(packed)
    return found.min(), found.max()


def _count(meta: Mapping[str, Any], name: str, rid: str) -> int | None:
    value = meta.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise WrongAnswer(rid, f"has the {name} {_shown(value)}, it must be an integer from 0 on")
    return value


def _prompt_tokens(meta: Mapping[str, Any], request: EngineRequest, rid: str) -> int:
    """What the engine read. With images it can differ from what was sent, which is the caller's to judge."""
    said = _count(meta, "prompt_tokens", rid)
    if said is None:
        return request.prompt_length
    if said != request.prompt_length and not request.extra.get("image_data"):
        raise WrongAnswer(
            rid,
            f"says that the engine read {said} tokens, it was sent {request.prompt_length}; it is another request's, "
            "or something on the way changes prompts",
        )
    return said


def _weight_version(meta: Mapping[str, Any], rid: str) -> str:
    value = meta.get("weight_version")
    if fault := version_fault(value):
        raise WrongAnswer(rid, f"has the weight_version {fault}")
    return "" if value is None else str(value)


def version_fault(value: Any) -> str:
    """What is wrong with a weight version, '' when nothing is: a string or an integer, or absent."""
    if value is None or type(value) is int or (isinstance(value, str) and len(value) <= LONGEST_SCALAR):
        return ""
    return f"{_shown(value)}, it must be an integer or a string of at most {LONGEST_SCALAR} characters"


def _kept(meta: Mapping[str, Any], request: EngineRequest, rid: str) -> dict[str, Any]:
    """Asked-for alternatives and the small scalars: what `Sampled` has no field for. Replay data has fields."""
    kept = {
        name: value
        for name, value in islice(meta.items(), MOST_FIELDS)
        if (type(value) in SCALARS or (type(value) is str and len(value) <= LONGEST_SCALAR))
        and not name.startswith(OWN_PLACES)
    }
    if request.extra.get(ALTERNATIVES_ASKED) and meta.get(ALTERNATIVES) is not None:
        kept[ALTERNATIVES] = _alternatives(meta[ALTERNATIVES], rid)
    return kept


def _alternatives(found: Any, rid: str) -> list[Any]:
    """One list of [logprob, id, ...] entries per token, or null."""
    places = [place for place in found if place is not None] if isinstance(found, list) else None
    if places is None or not all(isinstance(place, list) for place in places):
        raise WrongAnswer(rid, f"has {ALTERNATIVES} that are no lists of entries per token: {_shown(found)}")
    for place in places:
        for entry in place:
            if not (isinstance(entry, list) and len(entry) > 1 and type(entry[0]) in NUMBERS and type(entry[1]) is int):
                raise WrongAnswer(rid, f"has the entry {_shown(entry)} in {ALTERNATIVES}, which is no [logprob, id]")
    return found


def _shown(value: Any) -> str:
    """The value, shortened to what an error can hold."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
