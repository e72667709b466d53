"""SGLang's `/generate` on the wire: write a request, and accept only an answer to it that is consistent and plausible.

Absent fields are tolerated, because engines and routers differ; present ones must be right, because a wrong one would
train silently. Every rule quotes both numbers. The checks run as a few C-level passes over each list, since a Python
loop over tokens would dominate the cost of a turn.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.faults import WrongAnswer, refuse, words_of
from slime_agl.engine.replay import CUSTOM, read_experts, read_top_p, replay_fields, wants_top_p
from slime_agl.trace.turn import ABORT, LENGTH, STOP, Sampled, logprob_array, token_array

OWN_FIELDS = frozenset({"input_ids", "sampling_params", "return_logprob", "stream", "rid"})
OWN_PLACES = ("routed_experts", "top_p_", "output_top_")
ALTERNATIVES, ALTERNATIVES_ASKED = "output_top_logprobs", "top_logprobs_num"
LONGEST_SCALAR, MOST_FIELDS = 256, 128
# Renormalised probabilities can exceed 1 by a few float32 ulps of 1.2e-7 each.
HIGHEST_LOGPROB = 1e-6
# A float32 softmax samples nothing below e^-104, which is 104 times the temperature before the temperature applies.
# SGLang writes log 0, which cannot have been sampled, as the lowest float (-3.4e38).
LOWEST_LOGPROB = -10_000.0
LARGEST_ID = 2**31 - 1
# SGLang's `matched` after it sampled an id beyond the vocabulary and replaced it with a stop id.
NAN_MATCHED = "NaN happened"
INTEGER, NUMBERS, SCALARS = {int}, {int, float}, {bool, int, float}
DIGITS = b",-0123456789"
# Below this many values, plain Python beats numpy's start-up cost.
FEW = 256
# Upper bounds in bytes: [logprob, id, null] with id and text of a token (the longest have some hundred bytes); an
# alternative; the entry of a prompt token, which some engines send too; everything else.
BYTES_OF_A_TOKEN, ALTERNATIVE_BYTES, PROMPT_TOKEN_BYTES, BYTES_OF_AN_ANSWER = 1024, 256, 64, 1 << 20
BASE64_INT32, TOP_P_IDS_OF_A_TOKEN = 6, 4096
UNLIMITED = 1 << 16


def request_body(request: EngineRequest, rid: str) -> list[bytes]:
    """Serialise the request under the id `rid`, in pieces. The prompt's are passed on as they are.

    Raises:
        ValueError: `extra` names a field that the client sets itself.
    """
    if taken := OWN_FIELDS & request.extra.keys():
        raise ValueError(f"request {request.rid}: extra fields {sorted(taken)} are set by the engine client itself")
    fields = {"sampling_params": dict(request.sampling_params), "return_logprob": True, "stream": False, "rid": rid}
    if request.experts_width is not None:
        fields |= replay_fields(request)
    rest = orjson.dumps({**fields, **request.extra})
    return [b'{"input_ids":[', *request.prompt.pieces, b"]," + rest[1:]]


def nothing_sampled(request: EngineRequest) -> Sampled:
    """The answer to a request that was aborted before any of its tokens arrived."""
    return Sampled(ids=token_array(()), logprobs=logprob_array(()), finish=ABORT, prompt_tokens=request.prompt.length)


def read_answer(
    body: bytes, request: EngineRequest, rid: str, *, vocab_size: int | None = None, latency: float = 0.0
) -> Sampled:
    """Parse the body of a 200 answer to `request`, sent under the id `rid`.

    vocab_size: number of ids that the model can sample, None if unknown.

    Raises:
        WrongAnswer: it answers another request, holds no logprobs, contradicts itself, cannot be true, or lacks
            requested replay data.
        EngineRejected: it reports an abort caused by a bad request.
        TryAgain: it reports an abort caused by a transient worker fault.
    """
    answer, meta = parse_answer(body, rid)
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
    """Upper bound in bytes for the answer to this request, including JSON and base64."""
    new = request.sampling_params.get("max_new_tokens") or UNLIMITED
    a_token = BYTES_OF_A_TOKEN + ALTERNATIVE_BYTES * (request.extra.get(ALTERNATIVES_ASKED) or 0)
    if CUSTOM in request.sampling_params and wants_top_p(request.sampling_params):
        a_token += BASE64_INT32 * TOP_P_IDS_OF_A_TOKEN
    routed = BASE64_INT32 * (request.experts_width or 0)
    return BYTES_OF_AN_ANSWER + new * a_token + (request.prompt.length + new) * (routed + PROMPT_TOKEN_BYTES)


def parse_answer(body: bytes, rid: str) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Parse an answer and its `meta_info`, after checking that it belongs to this request.

    Raises:
        WrongAnswer: it does not.
    """
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise WrongAnswer(
            rid, f"(HTTP 200, {len(body)} bytes) is not JSON: {fault}; it reads {words_of(body)[:200]!r}", lost=True
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
        raise WrongAnswer(rid, f"has the id {_quoted(said)}: it belongs to another request", lost=True)
    return answer, meta


def _finish(reason: object, request: EngineRequest, rid: str, vocab_size: int | None) -> tuple[str, int | str | None]:
    """Return the finish reason, '' if absent or unknown, and the stop id or string that matched."""
    if reason is None or isinstance(reason, str):
        reason = {"type": reason}
    elif not isinstance(reason, dict):
        raise WrongAnswer(rid, f"has the finish_reason {_quoted(reason)}, it must be an object or a string")
    kind, status, matched = reason.get("type"), reason.get("status_code"), reason.get("matched")
    if not isinstance(kind, (str, type(None))):
        raise WrongAnswer(rid, f"has the finish_reason.type {_quoted(kind)}, it must be a string")
    if kind == ABORT and status is not None:
        if type(status) is not int:
            raise WrongAnswer(rid, f"has the finish_reason.status_code {_quoted(status)}, it must be an integer")
        if status >= 400:
            refuse(status, str(reason.get("message") or reason.get("err_type") or "aborted"), request)
    return (kind if kind in (STOP, LENGTH, ABORT) else ""), _matched(matched, request, rid, vocab_size)


def _matched(matched: object, request: EngineRequest, rid: str, vocab_size: int | None) -> int | str | None:
    if matched is None:
        return None
    if isinstance(matched, str):
        if matched == NAN_MATCHED and matched not in (request.sampling_params.get("stop") or ()):
            raise WrongAnswer(
                rid, f"ends with {NAN_MATCHED!r}: the engine sampled from NaN; look for it in the weights"
            )
        return matched
    ids: list[Any] = matched if isinstance(matched, list) else [matched]
    if not ids or set(map(type, ids)) != INTEGER:
        raise WrongAnswer(rid, f"has the finish_reason.matched {_quoted(matched)}, it must be a stop id or a string")
    return _known_ids(ids, "finish_reason.matched", rid, vocab_size)[-1]


def _tokens(
    answer: Mapping[str, object], meta: Mapping[str, object], rid: str, vocab_size: int | None
) -> tuple[array, array]:
    """Return ids and logprobs, after checking that the answer's other fields agree with them."""
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


def _columns(entries: object, rid: str) -> tuple[Sequence[Any], Sequence[Any]]:
    """Split [logprob, id, ...] entries into ids and logprobs, of any type."""
    if not isinstance(entries, list):
        raise WrongAnswer(rid, f"has output_token_logprobs of type {type(entries).__name__}, it must be a list")
    if not entries:
        return (), ()
    if {list}.issuperset(map(type, entries)) and min(map(len, entries)) >= 2:
        logprobs, ids, *_ = zip(*entries, strict=False)  # as many columns as the shortest entry has
        return ids, logprobs
    at = next(at for at, entry in enumerate(entries) if not isinstance(entry, list) or len(entry) < 2)
    raise WrongAnswer(
        rid,
        f"has entry {at} of {len(entries)} in output_token_logprobs, {_quoted(entries[at])}, which is not "
        "[logprob, id]",
    )


def _integers(ids: Sequence[Any], output_ids: object, rid: str) -> None:
    """Check that both lists hold the same integers. Comparing JSON is the fastest way to tell 1 from true and 1.0."""
    written = orjson.dumps(ids)
    if written[1:-1].translate(None, DIGITS):
        at = next(at for at, token in enumerate(ids) if type(token) is not int)
        raise WrongAnswer(rid, f"has the id {_quoted(ids[at])} at token {at} of {len(ids)}, it must be an integer")
    if output_ids is None or orjson.dumps(output_ids) == written:
        return
    if not isinstance(output_ids, list):
        raise WrongAnswer(rid, f"has output_ids of type {type(output_ids).__name__}, it must be a list")
    if len(output_ids) != len(ids):
        raise WrongAnswer(rid, f"has {len(ids)} entries in output_token_logprobs and {len(output_ids)} output_ids")
    at = next(at for at, token in enumerate(output_ids) if type(token) is not int or token != ids[at])
    raise WrongAnswer(
        rid, f"has the id {ids[at]} at token {at} in output_token_logprobs and {_quoted(output_ids[at])} in output_ids"
    )


def _numbers(logprobs: Sequence[Any], rid: str) -> array:
    """Pack logprobs into an array, after checking that a sampled token can have each of them."""
    try:
        values = logprob_array(logprobs)
    except TypeError:
        values = None
    low, high = (0.0, 0.0) if values is None else _ends(logprobs, values)
    # array() accepts false as 0, a value that real logprobs almost never have.
    if values is None or (high == 0 and not NUMBERS.issuperset(map(type, logprobs))):
        at = next(at for at, value in enumerate(logprobs) if type(value) not in NUMBERS)
        raise WrongAnswer(
            rid,
            f"has the logprob {_quoted(logprobs[at])} at token {at} of {len(logprobs)}, it must be a number (null is "
            "how NaN travels: look for it in the weights or the sampling parameters)",
        )
    # JSON has no NaN, so comparisons suffice.
    if low < LOWEST_LOGPROB or high > HIGHEST_LOGPROB:
        at = next(at for at, value in enumerate(values) if not LOWEST_LOGPROB <= value <= HIGHEST_LOGPROB)
        raise WrongAnswer(
            rid,
            f"has the logprob {_quoted(logprobs[at])} at token {at} of {len(values)}; a sampled token has one between "
            f"{LOWEST_LOGPROB:g} and 0",
        )
    return values


def _known_ids(ids: Sequence[int], where: str, rid: str, vocab_size: int | None) -> array:
    """Pack ids into an array, after checking that all are in the vocabulary."""
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


def _ends(values: Sequence[float], packed: array) -> tuple[float, float]:
    """Return the lowest and highest value, (0, 0) if empty. packed: the same values."""
    if len(values) < FEW:
        return (min(values), max(values)) if values else (0, 0)
    found = np.asarray(packed)
    return float(found.min()), float(found.max())


def _count(meta: Mapping[str, object], name: str, rid: str) -> int | None:
    value = meta.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise WrongAnswer(rid, f"has the {name} {_quoted(value)}, it must be an integer from 0 on")
    return value


def _prompt_tokens(meta: Mapping[str, object], request: EngineRequest, rid: str) -> int:
    """Number of tokens the engine read. With images it may differ from the number sent; the caller judges that."""
    said = _count(meta, "prompt_tokens", rid)
    if said is None:
        return request.prompt.length
    if said != request.prompt.length and not request.extra.get("image_data"):
        raise WrongAnswer(
            rid,
            f"says that the engine read {said} tokens, it was sent {request.prompt.length}; it is another request's, "
            "or something on the way changes prompts",
        )
    return said


def _weight_version(meta: Mapping[str, object], rid: str) -> str:
    value = meta.get("weight_version")
    if fault := version_fault(value):
        raise WrongAnswer(rid, f"has the weight_version {fault}")
    return "" if value is None else str(value)


def version_fault(value: object) -> str:
    """Describe what is wrong with a weight version; '' for a string, an integer or None."""
    if value is None or type(value) is int or (isinstance(value, str) and len(value) <= LONGEST_SCALAR):
        return ""
    return f"{_quoted(value)}, it must be an integer or a string of at most {LONGEST_SCALAR} characters"


def _kept(meta: Mapping[str, object], request: EngineRequest, rid: str) -> dict[str, object]:
    """Keep what `Sampled` has no field for: requested alternatives and small scalars."""
    kept = {
        name: value
        for name, value in islice(meta.items(), MOST_FIELDS)
        if (type(value) in SCALARS or (type(value) is str and len(value) <= LONGEST_SCALAR))
        and not name.startswith(OWN_PLACES)
    }
    if request.extra.get(ALTERNATIVES_ASKED) and meta.get(ALTERNATIVES) is not None:
        kept[ALTERNATIVES] = _alternatives(meta[ALTERNATIVES], rid)
    return kept


def _alternatives(found: object, rid: str) -> list[object]:
    """Check alternatives: per token a list of [logprob, id, ...] entries, or null."""
    if not isinstance(found, list) or not all(isinstance(place, list | None) for place in found):
        raise WrongAnswer(rid, f"has {ALTERNATIVES} that are not a list of entries per token: {_quoted(found)}")
    for place in found:
        for entry in place or ():
            if not (isinstance(entry, list) and len(entry) > 1 and type(entry[0]) in NUMBERS and type(entry[1]) is int):
                raise WrongAnswer(rid, f"has the entry {_quoted(entry)} in {ALTERNATIVES}, which is not [logprob, id]")
    return found


def _quoted(value: object) -> str:
    """Quote a value in an error, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
