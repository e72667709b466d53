"""Whether turns may be at the engine: open, or held until the trainer has done its part."""

from __future__ import annotations

import asyncio

from slime_agl.gateway.sessions.calls import Call


class Gate:
    """Shared by sessions that are held together. Belongs to the gateway's event loop."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self, call: Call) -> None:
        """Wait until the gate is open, or until nobody wants the call any more."""
        while not self.is_open and call.wanted:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._open, call.unwanted)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
