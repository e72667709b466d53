"""What stands behind the engine server: values that pass between them, and the Backend protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from slime_agl.errors import EngineError, InvariantError
from slime_agl.local.engine.sampling import SamplingParams

PAUSE_MODES = ("abort", "retract", "in_place")


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """context_length: most tokens of prompt plus output. vocab_size: ids are below it. max_running: batch size."""

    model_path: str
    context_length: int
    vocab_size: int
    max_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One `/generate` call. body and headers are as received, for recordings; nothing else reads them."""

    rid: str
    input_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    return_logprob: bool = False
    stream: bool = False
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finish:
    """kind: 'stop', 'length' or 'abort'. matched: the stop id or string. message: why it was aborted."""

    kind: str
    matched: int | str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a request has so far (finish None) or in the end. Everything is cumulative.

    logprobs: log p of each output id under softmax(logits / temperature), before top-p, top-k and min-p.
    cached_tokens: prompt tokens whose keys and values were reused.
    weight_version: version of the weights when this value was made.
    meta: further fields for `meta_info`; they win over the server's own.
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
"""Takes updates of one request, from any thread. The last one has a finish or is an error."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests being decoded, and requests that wait for a place or for the end of a pause."""

    running: int
    waiting: int


class Backend(Protocol):
    """Started and closed by the server that owns it. Methods are called from the server's thread or a helper's."""

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
        """Read the JSON body of a `/generate` request. Raises EngineRejected, with a status, to refuse it."""
        ...

    def submit(self, request: GenerateRequest, deliver: Deliver) -> None:
        """Queue a request. `request.rid` is not in flight yet. An error with status 0 cuts the client's connection."""

    def drop(self, rid: str) -> None:
        """End a request whose client has disconnected: whatever it delivers reaches nobody."""

    def abort(self, rid: str | None) -> None:
        """End one request, or all for None; each delivers what it has with finish 'abort'. Unknown ids are ignored."""

    def pause(self, mode: str) -> None:
        """Stop decoding; return when it has stopped. New requests wait for `resume`.

        abort: end everything in flight. retract: put running requests back in the queue. in_place: hold them.
        """

    def resume(self) -> None: ...

    def flush_cache(self) -> bool:
        """Drop the prefix cache. False, and nothing dropped, while requests are being decoded."""
        ...

    def update_weights(self, path: str, weight_version: str) -> None:
        """Load weights from a directory between two decoding steps and report `weight_version` from then on.

        When not paused, requests that run are completed first, so that each is sampled by one version.

        Raises:
            SlimeAglError: the weights do not fit; the old ones stay.
        """

    def load(self) -> Load: ...
