"""A sandbox with the shape of slime's and no more, over one of ours, so that what is built on that shape can run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType

from slime_agl.sandbox.bwrap import BwrapBackend
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.protocol import ExecResult, Limits, SandboxSpec
from slime_agl.sandbox.reach import Reach


class SlimeLike:
    created: list[SlimeLike] = []

    def __init__(self, image: str, *, timeout: int | None = None) -> None:
        self.image, self.timeout, self.sandbox_id = image, timeout, ""

    async def __aenter__(self) -> SlimeLike:
        self._folder = tempfile.TemporaryDirectory()
        self._backend = BwrapBackend(Home(self._folder.name), Reach())
        self._box = await self._backend.sandbox(SandboxSpec(limits=Limits(processes=300))).__aenter__()
        self.sandbox_id = self._box.sandbox_id
        self.created.append(self)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._box.__aexit__(exc_type, exc, tb)
        await self._backend.close()
        self._folder.cleanup()

    async def exec(
        self,
        cmd: str,
        *,
        user: str = "root",
        env: dict[str, str] | None = None,
        timeout: int = 120,
        check: bool = False,
        idempotent: bool = True,
    ) -> ExecResult:
        assert isinstance(timeout, int)
        return await self._box.exec(cmd, user=user, env=env, timeout=timeout, check=check, idempotent=idempotent)

    async def write_file(self, sandbox_path: str, content: str | bytes | Path, *, user: str = "root") -> None:
        await self._box.write_file(sandbox_path, content, user=user)

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        return await self._box.read_file(sandbox_path, user=user)
