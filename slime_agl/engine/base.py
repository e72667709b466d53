"""What the gateway needs of an inference engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from slime_agl.trace.turn import Sampled


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One `/generate` call.

    ids_json: the prompt's token ids as comma separated decimal text, without brackets;
        the caller keeps it serialised, so that a growing prompt is written once.
    prompt_length: number of ids in it. sampling_params: SGLang's names.
    rid: request id, by which it can be aborted. session_key: pins a session to one worker.
    extra: further top-level fields of the request (image_data, ...).
    experts_width: routed experts of one token when they are wanted, else None; experts_from: the first such token.
    model: the name that the agent asked for; it is not sent.
    """

    ids_json: bytes
    prompt_length: int
    sampling_params: Mapping[str, Any]
    rid: str
    session_key: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    experts_width: int | None = None
    experts_from: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself.

    context_length: most tokens of prompt and output, None if unknown. vocab_size: ids it can sample, None if unknown.
    """

    model_path: str = ""
    context_length: int | None = None
    weight_version: str = ""
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """What training replays, so that answers must hold it.

    experts_width: routed experts of one token (layers times choices), None when they are not replayed.
    top_p: the top_p of training when its sets are replayed, else None.
    """

    experts_width: int | None = None
    top_p: float | None = None

    def __bool__(self) -> bool:
        return self.experts_width is not None or self.top_p is not None


class Engine(Protocol):
    """All methods run on the event loop that called `start`."""

    async def start(self) -> None:
        """Open connections. Raises EngineUnavailable, naming the address, when nothing answers."""

    async def info(self) -> EngineInfo: ...

    async def generate(self, request: EngineRequest) -> Sampled:
        """Sample. A request that was aborted returns what it had, with finish 'abort'.

        Raises:
            EngineRejected: the engine refused it (4xx), with the engine's own words.
            EngineUnavailable: no answer after retries, or none that can be true, agrees with itself and holds what
                the request asks for.
        """
        ...

    async def abort(self, rid: str) -> None:
        """Ask every worker to end request `rid`; its `generate` call returns soon after. Never raises."""

    async def quiet(self) -> None:
        """End all requests of all clients; returns when every worker says it is idle. Never raises."""

    async def close(self) -> None: ...
