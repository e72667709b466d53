"""Backends of users: a class with the shape of slime's `slime.agent.sandbox.Sandbox`, named by its import path.

It is created with the image, and with `timeout` (seconds to live) if it takes that; entering, leaving, `exec`,
`write_file` and `read_file` are all it needs. It has no labels: a killed driver's sandboxes live until their timeout.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from slime_agl.errors import ConfigError
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.protocol import ExecResult, SandboxSpec
from slime_agl.sandbox.remote import Remote, RemoteBackend

NEEDED = ("__aenter__", "__aexit__", "exec", "write_file", "read_file")


class AdaptedBackend(RemoteBackend):
    def __init__(self, name: str, home: Home, *, start_seconds: float = 60.0) -> None:
        super().__init__(name, home, start_seconds=start_seconds)
        self._make = _load(name)

    def remote(self) -> Remote:
        return Adapted(self._make)


class Adapted(Remote):
    def __init__(self, make: Callable[..., Any]) -> None:
        self._make, self._box = make, None

    async def create(self, spec: SandboxSpec, labels: Mapping[str, str]) -> str:
        takes = inspect.signature(self._make).parameters
        more = {"timeout": int(spec.ttl_seconds)} if "timeout" in takes else {}
        box = self._make(spec.image, **more)
        self._box = await box.__aenter__()
        return str(getattr(self._box, "sandbox_id", "")) or type(box).__name__

    async def run(self, cmd: str, user: str, env: Mapping[str, str], timeout: float, idempotent: bool) -> ExecResult:
        status, out, err = await self._entered.exec(
            cmd, user=user, env=dict(env), timeout=int(timeout + 0.999), check=False, idempotent=idempotent
        )
        return status, out or "", err or ""

    async def put(self, path: str, data: bytes, user: str) -> None:
        await self._entered.write_file(path, data, user=user)

    async def get(self, path: str, user: str) -> bytes | None:
        return (await self._entered.read_file(path, user=user)).encode()

    async def end(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            await box.__aexit__(None, None, None)

    @property
    def _entered(self) -> Any:
        assert self._box is not None
        return self._box


def _load(name: str) -> Callable[..., Any]:
    module, _, attribute = name.rpartition(".")
    try:
        made = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"agl.sandbox.backend is {name!r}, which cannot be imported: {error}") from error
    missing = [method for method in NEEDED if inspect.isclass(made) and not hasattr(made, method)]
    if missing:
        raise ConfigError(f"agl.sandbox.backend: {name} lacks {', '.join(missing)}, which a sandbox has")
    return made
