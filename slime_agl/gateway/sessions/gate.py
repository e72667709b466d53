"""A gate before the engine, closed while turns are parked."""

from __future__ import annotations

import asyncio

from slime_agl.gateway.sessions.calls import Call


class Gate:
    """Shared by the sessions of a lane. Belongs to the gateway's event loop."""

    def __init__(self) -> None:
        self.is_open = True
        self._opened = asyncio.Event()

    def close(self) -> None:
        self.is_open = False
        self._opened.clear()

    def open(self) -> None:
        self.is_open = True
        self._opened.set()

    async def passed(self, call: Call) -> None:
        """Wait until the gate opens or the call is no longer wanted."""
        while not self.is_open and call.wanted:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._opened, call.unwanted)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
