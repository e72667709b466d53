"""How an engine call fails: in a way that another try may mend, or for good."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from slime_agl.engine.base import EngineRequest
from slime_agl.errors import EngineRejected

LONGEST_QUOTE = 600
# SGLang's wording when a request exceeds its context; the error carries no code.
OVERFLOW_WORDS = "context length"
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


class TryAgain(Exception):
    """A failure that another try may mend.

    status: HTTP status, None if no answer arrived.
    lost: the request may still be running on a worker although its answer will not arrive.
    """

    def __init__(self, words: str, *, status: int | None = None, lost: bool = False) -> None:
        super().__init__(words)
        self.status = status
        self.lost = lost


class WrongAnswer(TryAgain):
    """An answer that belongs to another request, contradicts itself or cannot be true."""

    def __init__(self, rid: str, words: str, *, lost: bool = False) -> None:
        super().__init__(f"the answer to request {rid} {words}", status=200, lost=lost)


def refuse(status: int, words: str, request: EngineRequest) -> None:
    """Raise the failure that an error status stands for.

    Raises:
        TryAgain: 408, 429, and the 5xx of a worker that is gone, full or broken.
        EngineRejected: any other status, in the engine's words.
    """
    if status in TRANSIENT:
        raise TryAgain(f"HTTP {status}: {words}", status=status)
    raise EngineRejected(
        f"the engine refused request {request.rid} ({request.prompt.length} prompt tokens) with HTTP {status}: "
        f"{words}. It would refuse it again: change the prompt or the sampling parameters it names",
        status=status,
        overflow=OVERFLOW_WORDS in words,
    )


def words_of(body: bytes) -> str:
    """Extract the message of an error body in SGLang's, FastAPI's or the router's shape; else return its start."""
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = body.decode("utf-8", "replace").strip()
    while isinstance(value, Mapping):
        fields: Mapping[object, object] = value
        inner = next((fields[key] for key in ("error", "message", "detail") if fields.get(key)), None)
        value = orjson.dumps(value).decode() if inner is None else inner
    return str(value)[:LONGEST_QUOTE] or "(empty body)"
