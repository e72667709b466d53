"""Sandboxes of every backend that runs here, each in a folder of the test's own."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from slime_agl.errors import SandboxError
from slime_agl.sandbox.bwrap import BwrapBackend
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.kept import KeptBackend
from slime_agl.sandbox.local import LocalBackend
from slime_agl.sandbox.reach import Reach

KINDS: dict[str, type[KeptBackend]] = {"bwrap": BwrapBackend, "local": LocalBackend}


@functools.cache
def unusable(name: str) -> str:
    """Why a backend cannot run on this machine, '' if it can."""
    try:
        KINDS[name].check()
    except SandboxError as error:
        return str(error)
    return ""


def made(name: str, folder: Path, reach: Reach | None = None) -> KeptBackend:
    if reason := unusable(name):
        pytest.skip(f"{name}: {reason}")
    return KINDS[name](Home(str(folder / "sandboxes")), reach or Reach())


@pytest.fixture(params=sorted(KINDS))
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeptBackend]:
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
