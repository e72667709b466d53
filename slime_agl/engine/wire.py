"""SGLang's `/generate` on the wire: a request to bytes, bytes to `Sampled`. No input or output here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.replay import read_experts, read_top_p, replay_fields
from slime_agl.errors import EngineRejected
from slime_agl.trace.turn import ABORT, LENGTH, STOP, Sampled, logprob_array, token_array

OWN_FIELDS = frozenset({"input_ids", "sampling_params", "return_logprob", "stream", "rid"})
REPLAY_PREFIXES = ("routed_experts", "top_p_")
ALTERNATIVES = "output_top_logprobs"
LONGEST_SCALAR = 256
LONGEST_QUOTE = 600
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


class TryAgain(Exception):
    """The call failed in a way that another try may mend.

    status: HTTP status, None when no answer arrived.
    lost: the request may still run at a worker although its answer will not come.
    """

    def __init__(self, words: str, *, status: int | None = None, lost: bool = False) -> None:
        super().__init__(words)
        self.status = status
        self.lost = lost


def request_body(request: EngineRequest, rid: str) -> bytes:
    """Serialise the request under the id `rid`. The prompt's ids are copied, never parsed.

    Raises:
        ValueError: `extra` names a field that the client sets itself.
    """
    if taken := OWN_FIELDS & request.extra.keys():
        raise ValueError(f"request {request.rid}: extra fields {sorted(taken)} are set by the engine client itself")
    fields = {"sampling_params": dict(request.sampling_params), "return_logprob": True, "stream": False, "rid": rid}
    rest = orjson.dumps({**fields, **replay_fields(request), **request.extra})
    return b"".join((b'{"input_ids":[', request.ids_json, b"],", rest[1:]))


def read_answer(body: bytes, request: EngineRequest, latency: float) -> Sampled:
    """Parse the body of a 200 answer.

    Raises:
        EngineRejected: the body is no `/generate` answer, holds no logprobs, or aborts because of a bad request.
        TryAgain: it aborts because of a passing fault of the worker.
        InvariantError: replay data that was asked for is missing or does not fit.
    """
    meta = _meta(body, request)
    finish, matched = _finish(meta.get("finish_reason"), request)
    ids, logprobs = _tokens(meta, request)
    if not finish:
        limit = request.sampling_params.get("max_new_tokens")
        finish = LENGTH if limit is not None and len(ids) >= limit else STOP
    version = meta.get("weight_version")
    return Sampled(
        ids=token_array(ids),
        logprobs=logprob_array(logprobs),
        finish=finish,
        matched=matched,
        prompt_tokens=meta.get("prompt_tokens") or request.prompt_length,
        cached_tokens=meta.get("cached_tokens") or 0,
        weight_version="" if version is None else str(version),
        latency=latency,
        meta=_kept(meta),
        experts=read_experts(meta, request, len(ids)),
        top_p=read_top_p(meta, request, len(ids)),
    )


def nothing_sampled(request: EngineRequest) -> Sampled:
    """The answer to a request that was aborted before any token of it arrived here."""
    return Sampled(token_array(()), logprob_array(()), ABORT, prompt_tokens=request.prompt_length)


def words_of(body: bytes) -> str:
    """Return the sentence in an error body: SGLang's, FastAPI's and the router's shapes, else its beginning."""
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = body.decode("utf-8", "replace").strip()
    while isinstance(value, Mapping):
        inner = next((value[key] for key in ("error", "message", "detail") if value.get(key)), None)
        value = orjson.dumps(value).decode() if inner is None else inner
    return str(value)[:LONGEST_QUOTE] or "(empty body)"


def refuse(status: int, words: str, request: EngineRequest) -> None:
    """Raise what an error status means for the caller.

    Raises:
        TryAgain: 408, 429 and the 5xx of a worker that is gone, full or broken.
        EngineRejected: everything else, in the engine's words.
    """
    if status in TRANSIENT:
        raise TryAgain(f"HTTP {status}: {words}", status=status)
    raise EngineRejected(
        f"the engine refused request {request.rid} ({request.prompt_length} prompt tokens) with HTTP {status}: "
        f"{words}. It would refuse it again: change the prompt or the sampling parameters it names",
        status=status,
    )


def _meta(body: bytes, request: EngineRequest) -> Mapping[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
    if not isinstance(meta, Mapping):
        raise EngineRejected(
            f"request {request.rid} was answered with HTTP 200 but without `meta_info`: {words_of(body)[:200]!r}; "
            "the address must be that of an sgl-router or an SGLang server",
            status=200,
        )
    return meta


def _finish(reason: Any, request: EngineRequest) -> tuple[str, int | str | None]:
    """Return finish ('' when the engine gave none that is known) and what matched."""
    if not isinstance(reason, Mapping):
        reason = {"type": reason}
    kind, status = reason.get("type"), reason.get("status_code")
    if kind == ABORT and isinstance(status, int) and status >= 400:
        refuse(status, str(reason.get("message") or reason.get("err_type") or "aborted"), request)
    return (kind if kind in (STOP, LENGTH, ABORT) else ""), reason.get("matched")


def _tokens(meta: Mapping[str, Any], request: EngineRequest) -> tuple[list[int], list[float]]:
    entries = meta.get("output_token_logprobs")
    if entries is None:
        if count := meta.get("completion_tokens"):
            raise EngineRejected(
                f"request {request.rid} was answered with {count} tokens and no output_token_logprobs; the ids and "
                "logprobs are read from there, so return_logprob must reach the worker unchanged",
                status=200,
            )
        return [], []
    ids, logprobs = [entry[1] for entry in entries], [entry[0] for entry in entries]
    if None in logprobs:
        raise EngineRejected(
            f"request {request.rid}: logprob {logprobs.index(None)} of {len(logprobs)} is null, which is how a NaN "
            "travels; look for NaN in the weights or the sampling parameters",
            status=200,
        )
    return ids, logprobs


def _kept(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Asked-for alternatives and the small scalars: what `Sampled` has no field for. Replay data has fields."""
    return {
        key: value
        for key, value in meta.items()
        if key == ALTERNATIVES or (_small(value) and not key.startswith(REPLAY_PREFIXES))
    }


def _small(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= LONGEST_SCALAR)
