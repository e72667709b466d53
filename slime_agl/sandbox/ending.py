"""What sandboxes of all kinds share: they end once, and a command that must succeed is an error if it does not."""

from __future__ import annotations

import asyncio
from types import TracebackType

from slime_agl.errors import SandboxError


class Ending:
    """Ends once, however often and from wherever it is asked."""

    sandbox_id = ""

    def __init__(self) -> None:
        self._ending: asyncio.Task[None] | None = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    async def end(self) -> None:
        """End every process and remove the sandbox. Idempotent; goes on when its caller is cancelled."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        raise NotImplementedError

    def _not_running(self) -> SandboxError:
        return SandboxError(f"sandbox {self.sandbox_id or '(not created)'} is not running")

    def _failed(self, cmd: str, status: int, out: str, err: str) -> SandboxError:
        """The error for a command that was to be checked."""
        said = (err or out)[-400:]
        return SandboxError(f"sandbox {self.sandbox_id}: status {status} from `{cmd[:200]}`: {said}")
