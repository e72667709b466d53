"""SGLang's `/generate` on the wire: a request to bytes, and what error statuses mean. No input or output here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.faults import TryAgain
from slime_agl.engine.replay import replay_fields
from slime_agl.errors import EngineRejected
from slime_agl.trace.turn import ABORT, Sampled, logprob_array, token_array

OWN_FIELDS = frozenset({"input_ids", "sampling_params", "return_logprob", "stream", "rid"})
LONGEST_QUOTE = 600
# In SGLang's errors for a request that its context cannot hold; they carry no code.
OVERFLOW_WORDS = "context length"
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


def request_body(request: EngineRequest, rid: str) -> bytes:
    """Serialise the request under the id `rid`. The prompt's ids are copied, never parsed.

    Raises:
        ValueError: `extra` names a field that the client sets itself.
    """
    if taken := OWN_FIELDS & request.extra.keys():
        raise ValueError(f"request {request.rid}: extra fields {sorted(taken)} are set by the engine client itself")
    fields = {"sampling_params": dict(request.sampling_params), "return_logprob": True, "stream": False, "rid": rid}
    if request.experts_width is not None:
        fields |= replay_fields(request)
    rest = orjson.dumps({**fields, **request.extra})
    return b"".join((b'{"input_ids":[', request.ids_json, b"],", rest[1:]))


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
        overflow=OVERFLOW_WORDS in words,
    )
