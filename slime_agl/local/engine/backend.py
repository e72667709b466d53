"""The Backend protocol of the engine server, and the values that pass between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slime_agl.errors import EngineError, InvariantError
from slime_agl.local.engine.sampling import SamplingParams

PAUSES = ("abort", "retract", "in_place")


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """context_length: limit on prompt plus output tokens. vocab_size: ids are below it. max_running: batch size."""

    model_path: str
    context_length: int
    vocab_size: int
    max_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One `/generate` call. body, headers: as received, for recordings only.

    score_from: return log p of the prompt's tokens from this one on, None for none.
    """

    rid: str
    input_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    return_logprob: bool = False
    score_from: int | None = None
    stream: bool = False
    body: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finish:
    """kind: 'stop', 'length' or 'abort'. matched: the stop id or string. message: reason of an abort."""

    kind: str
    matched: int | str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A request's output so far (finish None) or at its end. All fields are cumulative.

    logprobs: log p of each output id under softmax(logits / temperature), before top-p, top-k and min-p.
    cached_tokens: prompt tokens whose keys and values were reused.
    weight_version: version of the weights when this value was made.
    meta: further fields for `meta_info`; they override the server's own.
    """

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    prompt_tokens: int
    weight_version: str
    finish: Finish | None = None
    cached_tokens: int = 0
    meta: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.output_ids) != len(self.logprobs):
            raise InvariantError(f"answer has {len(self.output_ids)} output ids but {len(self.logprobs)} logprobs")


Deliver = Callable[[Generated | EngineError], None]
"""Receives updates of one request, from any thread. The last one has a finish or is an error."""


@dataclass(frozen=True, slots=True)
class Load:
    """running: requests in the batch. waiting: requests that wait for a place or for the end of a pause."""

    running: int
    waiting: int


class Backend(Protocol):
    """Owned, started and closed by the server. Methods are called from the server's thread or a helper's."""

    @property
    def info(self) -> BackendInfo: ...

    @property
    def weight_version(self) -> str: ...

    @property
    def healthy(self) -> bool: ...

    def start(self) -> None: ...

    def close(self) -> None:
        """Abort what is in flight and stop. Idempotent."""

    def read(self, body: object, headers: Mapping[str, str]) -> GenerateRequest:
        """Parse the JSON body of a `/generate` request. Raises EngineRejected, with a status, to refuse it."""
        ...

    def submit(self, request: GenerateRequest, deliver: Deliver) -> None:
        """Queue a request with a new `rid`. Delivering an error with status 0 closes the client's connection."""

    def drop(self, rid: str) -> None:
        """End a request whose client has disconnected; later deliveries are ignored."""

    def abort(self, rid: str | None) -> None:
        """End one request, or all for None; each delivers its partial output, finish 'abort'. Ignores unknown ids."""

    def pause(self, kind: str) -> None:
        """Stop decoding; return once it has stopped. New requests wait for `resume`.

        kind: 'abort' ends everything in flight, 'retract' puts running requests back in the queue, 'in_place' keeps
        them in the batch.
        """

    def resume(self) -> None: ...

    def flush_cache(self) -> bool:
        """Drop the prefix cache. While requests are being decoded, do nothing and return False."""
        ...

    def update_weights(self, path: str, weight_version: str) -> None:
        """Load weights from a directory between two decoding steps; report `weight_version` from then on.

        Unless paused, running requests are completed first, so that each is sampled by one version.

        Raises:
            SlimeAglError: the weights do not fit; the old ones stay.
        """

    def load(self) -> Load: ...
