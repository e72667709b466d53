"""What the workers of these tests are made of."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np

from slime_agl.errors import EngineError
from slime_agl.loops import LoopThread
from slime_agl.workers.serving import hop


class Unpicklable(Exception):
    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")


class Target:
    def __init__(self, greeting: str = "hello") -> None:
        self._greeting = greeting
        self._loop = LoopThread("target")
        self._loop.start()

    async def greet(self, who: str) -> str:
        return f"{self._greeting} {who}"

    async def same(self, value: Any) -> Any:
        return value

    async def shares_memory(self, array: np.ndarray) -> bool:
        return array.base is not None

    async def pid(self) -> int:
        return os.getpid()

    async def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    async def fail(self, kind: str) -> None:
        if kind == "engine":
            raise EngineError("no answer", status=503)
        if kind == "exit":
            raise SystemExit(3)
        raise Unpicklable("a", "b")

    async def lock(self) -> Any:
        return threading.Lock()

    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def wait(self, began: str, unwound: str) -> None:
        """Wait for ever on another thread's loop; files say that it has begun, and that it has unwound."""

        async def work() -> None:
            Path(began).touch()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                Path(unwound).touch()

        await hop(self._loop.submit, work())
