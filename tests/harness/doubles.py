"""A sandbox that is a folder of this machine, for tests of what runs in it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

from slime_agl.errors import SandboxError


class FolderProcess:
    def __init__(self, process, output: Path) -> None:
        self._process, self._output = process, output

    async def wait(self, timeout=None):
        try:
            status = await asyncio.wait_for(asyncio.shield(self._process.wait()), timeout)
        except TimeoutError:
            return None
        return 128 - status if status < 0 else status

    async def output(self, most_bytes=65536):
        return self._output.read_text(errors="replace")[-most_bytes:]

    async def kill(self):
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await self._process.wait()


class FolderBox:
    def __init__(self, backend, spec) -> None:
        self._backend, self.spec, self.labels = backend, spec, spec.labels
        self.sandbox_id = f"box-{len(backend.boxes)}"
        self.root = Path()
        self.endpoint = spec.endpoint

    async def __aenter__(self):
        self._backend.boxes.append(self)
        if (fault := self._backend.faults.pop("create", None)) is not None:
            raise SandboxError(fault)
        self.root = Path(tempfile.mkdtemp(prefix="slime_agl-box-"))
        self._at(self.spec.workdir).mkdir(parents=True, exist_ok=True)
        self._processes = []
        return self

    async def __aexit__(self, *_):
        for process in self._processes:
            await process.kill()
        shutil.rmtree(self.root)

    def _at(self, path) -> Path:
        return self.root / str(path).lstrip("/")

    def _env(self, env):
        plain = {"PATH": os.environ["PATH"], "HOME": str(self._at("/root")), "SANDBOX_ROOT": str(self.root)}
        self._at("/root").mkdir(exist_ok=True)
        return {**plain, **self.spec.env, **(env or {})}

    async def exec(self, cmd, *, user="root", env=None, timeout=120, check=False, idempotent=True):
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", cmd, cwd=self._at(self.spec.workdir), env=self._env(env), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return 124, "", ""
        return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")

    async def start(self, cmd, *, user="root", env=None, cwd=None):
        output = self._at(f"/out{len(self._processes)}")
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                "sh", "-c", cmd, cwd=self._at(cwd or self.spec.workdir), env=self._env(env),
                stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self._processes.append(FolderProcess(process, output))
        return self._processes[-1]

    async def write_file(self, sandbox_path, content, *, user="root"):
        path = self._at(sandbox_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    async def read_file(self, sandbox_path, *, user="root"):
        path = self._at(sandbox_path)
        return path.read_text(errors="replace") if path.exists() else ""

    async def upload(self, host_path, sandbox_path):
        if host_path.is_dir():
            shutil.copytree(host_path, self._at(sandbox_path), symlinks=True, dirs_exist_ok=True)
        else:
            self._at(sandbox_path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(host_path, self._at(sandbox_path))

    async def set_network(self, network): ...

    async def is_alive(self):
        return self.root.exists()


class FolderBackend:
    """boxes: all sandboxes so far. faults: `create` -> message, raised once."""

    name = "local"
    latest: FolderBackend | None = None

    def __init__(self) -> None:
        self.boxes: list[FolderBox] = []
        self.faults: dict[str, str] = {}
        self.closed = False
        FolderBackend.latest = self

    def sandbox(self, spec):
        return FolderBox(self, spec)

    async def reap(self, labels):
        return 0

    async def close(self):
        self.closed = True
