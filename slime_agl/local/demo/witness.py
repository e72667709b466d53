"""Record an engine's answers at the engine itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from slime_agl.errors import EngineError
from slime_agl.local.engine.backend import Backend, BackendInfo, Deliver, Generated, GenerateRequest, Load
from slime_agl.trace.invariants import Seen


class Witness:
    """A Backend that forwards to another and records every answer. Thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._seen: list[Seen] = []

    def take(self) -> list[Seen]:
        """Return all answers since the last call."""
        with self._lock:
            seen, self._seen = self._seen, []
        return seen

    def submit(self, request: GenerateRequest, deliver: Deliver) -> None:
        def witnessed(update: Generated | EngineError) -> None:
            if isinstance(update, Generated) and update.finish is not None:
                with self._lock:
                    self._seen.append(Seen(request.input_ids, update.output_ids, update.logprobs))
            deliver(update)

        self._backend.submit(request, witnessed)

    @property
    def info(self) -> BackendInfo:
        return self._backend.info

    @property
    def weight_version(self) -> str:
        return self._backend.weight_version

    @property
    def healthy(self) -> bool:
        return self._backend.healthy

    def start(self) -> None:
        self._backend.start()

    def close(self) -> None:
        self._backend.close()

    def read(self, body: object, headers: Mapping[str, str]) -> GenerateRequest:
        return self._backend.read(body, headers)

    def drop(self, rid: str) -> None:
        self._backend.drop(rid)

    def abort(self, rid: str | None) -> None:
        self._backend.abort(rid)

    def pause(self, kind: str) -> None:
        self._backend.pause(kind)

    def resume(self) -> None:
        self._backend.resume()

    def flush_cache(self) -> bool:
        return self._backend.flush_cache()

    def update_weights(self, path: str, weight_version: str) -> None:
        self._backend.update_weights(path, weight_version)

    def load(self) -> Load:
        return self._backend.load()
