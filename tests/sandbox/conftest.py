"""Sandboxes of every backend that runs here, each in a folder of the test's own."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sandbox_helpers import KEPT, KINDS, made

from slime_agl.sandbox.kept import KeptBackend


@pytest.fixture(params=KINDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Each backend in turn."""
    backend = made(request.param, tmp_path)
    yield backend
    await backend.close()


@pytest.fixture(params=sorted(KEPT))
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeptBackend]:
    """Each backend of this machine in turn."""
    backend = made(request.param, tmp_path)
    yield backend
    await backend.close()


@pytest.fixture
def processes() -> Callable[[str], set[int]]:
    """Pids of the live processes whose command line contains a text."""

    def find(text: str) -> set[int]:
        found = set()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if text in line:
                    found.add(int(folder.name))
        return found

    return find


class Http:
    """A server that answers with the request line of what it was asked."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = f"{self.command} {self.path}".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def http() -> Iterator[Http]:
    server = Http()
    yield server
    server.close()
