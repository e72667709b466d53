"""A headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0")


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    async def value(self, expression: str) -> Any:
        """Evaluate JavaScript and return its value, awaited if it is a promise."""
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    async def open(self, url: str) -> None:
        """Navigate, and wait until the page has loaded and painted."""
        await self.call("Page.navigate", url=url)
        loaded = (
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"
        )
        while await self.value("location.href") != url:
            await asyncio.sleep(0.01)
        await self.value(loaded)
        await self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")


@contextlib.asynccontextmanager
async def tab(width: int = 1400, height: int = 1000, *, dark: bool = False) -> AsyncIterator[Page]:
    """Start a browser with one tab; it ends with the block."""
    program = chromium()
    if program is None:
        raise SystemExit("found no Chromium; install one, such as Debian's package chromium")
    with tempfile.TemporaryDirectory(prefix="slime-agl-chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(profile) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    target = next(one for one in await answer.json() if one["type"] == "page")
                async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
                    await page.call("Emulation.setEmulatedMedia", features=[scheme])
                    yield page
        finally:
            process.terminate()
            await process.wait()


async def _port(file: Path) -> int:
    for _ in range(600):
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        await asyncio.sleep(0.05)
    raise SystemExit("Chromium did not start within 30 s")
