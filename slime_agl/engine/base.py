"""The engine interface that the gateway relies on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct, field

from slime_agl.engine.id_text import IdText
from slime_agl.trace.turn import Sampled


class EngineRequest(Struct, frozen=True, kw_only=True):
    """One `/generate` call.

    prompt: its token ids. The caller keeps them serialised, so that a growing prompt is written once.
    sampling_params: in SGLang's names.
    rid: request id, used to abort it. session_key: pins a session to one worker.
    extra: further top-level fields of the request (image_data, ...).
    experts_width: routed experts per token if requested, else None. experts_from: first token to return them for.
    model: name the agent asked for; not sent.
    """

    prompt: IdText
    sampling_params: Mapping[str, Any]
    rid: str
    session_key: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    experts_width: int | None = None
    experts_from: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine's self-description.

    context_length: limit on prompt plus output in tokens. vocab_size: number of ids it can sample. None if unknown.
    """

    model_path: str = ""
    context_length: int | None = None
    weight_version: str = ""
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine holds, over all its workers.

    usage: of the fullest one's tokens in use by requests, 0 to 1; what is only cached does not count. capacity: tokens
    that fit, prefix cache included. None if unreported.
    """

    running: int
    waiting: int
    usage: float | None = None
    capacity: int | None = None


COUNTS = ("held", "reused", "ended", "ended_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How agents strain an engine. load: None if unreported. held, reused: tokens of earlier turns with which later
    requests began, and how many of them the engine still had in its prefix cache. ended, ended_tokens: attempts that
    ended, and the tokens that all their turns had.
    """

    load: Load | None
    held: int = 0
    reused: int = 0
    ended: int = 0
    ended_tokens: int = 0

    @classmethod
    def over(cls, found: Sequence[Pressure]) -> Pressure:
        """Of several processes on one engine."""
        load = next((one.load for one in found if one.load is not None), None)
        return cls(load=load, **{name: sum(getattr(one, name) for one in found) for name in COUNTS})

    def since(self, earlier: Pressure) -> Pressure:
        """What came after `earlier`. Counts are never negative: a worker that died has taken its own along."""
        new = {name: max(0, getattr(self, name) - getattr(earlier, name)) for name in COUNTS}
        return Pressure(load=self.load, **new)


@dataclass(frozen=True, slots=True)
class Replay:
    """The replay data that every answer must hold.

    experts_width: routed experts per token (layers times choices), None if not replayed.
    top_p: the trainer's top_p if its sets are replayed, else None.
    """

    experts_width: int | None = None
    top_p: float | None = None

    def __bool__(self) -> bool:
        return self.experts_width is not None or self.top_p is not None


class Engine(Protocol):
    """An inference engine. All methods run on the event loop that called `start`."""

    async def start(self) -> None:
        """Open connections. Raises EngineUnavailable, naming the address, if nothing answers."""

    async def info(self) -> EngineInfo: ...

    async def generate(self, request: EngineRequest) -> Sampled:
        """Sample. An aborted request returns its partial output, with finish 'abort'.

        Raises:
            EngineRejected: the engine refused it (4xx), in the engine's words.
            EngineUnavailable: retries brought no answer, or none that is plausible, consistent and complete.
        """
        ...

    async def abort(self, rid: str) -> None:
        """Ask every worker to abort request `rid`; its `generate` call returns soon after. Never raises."""

    async def abort_all_of(self, origin: str) -> None:
        """Ask every worker to abort the requests of another process, whose ids begin with `origin`. Never raises."""

    async def reported_load(self) -> Load | None:
        """What the engine holds, None if it does not report it. Never raises."""

    async def quiet(self) -> None:
        """Abort all requests of all clients and wait until every worker reports idle. Never raises."""

    async def close(self) -> None: ...
