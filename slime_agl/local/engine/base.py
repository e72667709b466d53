"""Base class of the engine server's backends."""

from __future__ import annotations

from collections.abc import Mapping

from slime_agl.local.engine.backend import BackendInfo, GenerateRequest
from slime_agl.local.engine.wire import parse_generate


class BackendBase:
    """Identity of a backend, and parsing of requests as in SGLang. Subclasses answer them."""

    def __init__(self, info: BackendInfo, weight_version: str) -> None:
        self._info = info
        self._weight_version = weight_version

    @property
    def info(self) -> BackendInfo:
        return self._info

    @property
    def weight_version(self) -> str:
        return self._weight_version

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def read(self, body: object, headers: Mapping[str, str]) -> GenerateRequest:
        return parse_generate(body, info=self._info, encode=self.encode, headers=headers)

    def abort(self, rid: str | None) -> None:
        raise NotImplementedError

    def drop(self, rid: str) -> None:
        self.abort(rid)
