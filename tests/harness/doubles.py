"""The real backend, watched: what sandboxes were asked for, and faults on request."""

from __future__ import annotations

from typing import Any

from slime_agl.errors import SandboxError
from slime_agl.sandbox.protocol import Backend, SandboxSpec


class Watched:
    """A backend around another. specs: of all sandboxes so far. broken: how many of the next cannot be created."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.name = backend, backend.name
        self.specs: list[SandboxSpec] = []
        self.ids: list[str] = []
        self.broken = 0
        self.closed = False

    def sandbox(self, spec: SandboxSpec) -> Any:
        self.specs.append(spec)
        if self.broken:
            self.broken -= 1
            return Broken()
        return self.backend.sandbox(spec)

    async def reap(self, labels: Any) -> int:
        return await self.backend.reap(labels)

    async def close(self) -> None:
        self.closed = True
        await self.backend.close()


class Broken:
    async def __aenter__(self) -> Any:
        raise SandboxError("no disk")

    async def __aexit__(self, *_: object) -> None: ...
