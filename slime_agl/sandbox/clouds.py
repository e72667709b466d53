"""Backends `e2b`, `modal` and `daytona`, through their libraries, which are imported on first use.

Written against e2b 2.63, modal 1.6 and daytona 0.226, and tested only against stand-ins of their calls: no account was
at hand. `image` is a template of E2B, a registry image of Modal and Daytona. Credentials come from the environment
variables that the libraries read. Only the gateway's host is allowed out under `network: gateway`.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from slime_agl.errors import SandboxError
from slime_agl.sandbox import shell
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.protocol import ExecResult, Network, SandboxSpec
from slime_agl.sandbox.remote import HOME_LABEL, SHORT_SECONDS, Remote, RemoteBackend

TIMED_OUT, KILLED = 124, 137
APP = "slime_agl"
EVERYTHING = "0.0.0.0/0"


class E2B(Remote):
    def __init__(self, library: Any, box: Any = None) -> None:
        self._library, self._box = library, box

    async def create(self, spec: SandboxSpec, labels: Mapping[str, str]) -> str:
        self._box = await self._library.AsyncSandbox.create(
            template=spec.image or None,
            timeout=int(spec.ttl_seconds),
            metadata=dict(labels),
            **_e2b_network(spec.network, _host(spec)),
        )
        return self._box.sandbox_id

    async def run(self, cmd: str, user: str, env: Mapping[str, str], timeout: float, idempotent: bool) -> ExecResult:
        try:
            done = await self._box.commands.run(cmd, user=user, envs=dict(env), timeout=timeout)
        except self._library.CommandExitException as error:
            done = error
        except self._library.TimeoutException:
            if not await self._box.is_running():
                raise
            return TIMED_OUT, "", ""
        return done.exit_code, done.stdout or "", done.stderr or ""

    async def put(self, path: str, data: bytes, user: str) -> None:
        await self._box.files.write(path, data, user=user)

    async def get(self, path: str, user: str) -> bytes | None:
        try:
            return bytes(await self._box.files.read(path, format="bytes", user=user))
        except self._library.NotFoundException:
            return None

    async def end(self) -> None:
        if self._box is not None:
            await self._box.kill()

    async def alive(self) -> bool:
        return await self._box.is_running()

    async def restrict(self, network: Network, host: str) -> None:
        await self._box.update_network(_e2b_network(network, host).get("network", {}))


class Modal(Remote):
    def __init__(self, library: Any, box: Any = None) -> None:
        self._library, self._box = library, box

    async def create(self, spec: SandboxSpec, labels: Mapping[str, str]) -> str:
        library, limits = self._library, spec.limits
        app = await library.App.lookup.aio(APP, create_if_missing=True)
        image = library.Image.from_registry(spec.image) if spec.image else library.Image.debian_slim()
        self._box = await library.Sandbox.create.aio(
            app=app,
            image=image,
            tags=dict(labels),
            timeout=int(spec.ttl_seconds),
            **({"cpu": (limits.cpus, limits.cpus)} if limits.cpus is not None else {}),
            **({"memory": (limits.memory_mb, limits.memory_mb)} if limits.memory_mb is not None else {}),
            **_modal_network(spec.network, _host(spec)),
        )
        return self._box.object_id

    async def run(self, cmd: str, user: str, env: Mapping[str, str], timeout: float, idempotent: bool) -> ExecResult:
        switched = ("su", user, "-s", "/bin/sh", "-c", cmd) if user != "root" else ("sh", "-c", cmd)
        # timeout(1) ends the program; modal's own limit of time would look like the program's end.
        process = await self._box.exec.aio("timeout", "-s", "KILL", str(timeout), *switched, env=dict(env), text=False)
        out, err = await process.stdout.read.aio(), await process.stderr.read.aio()
        status = await process.wait.aio()
        status = TIMED_OUT if status == KILLED else status
        return status, out.decode(errors="replace"), err.decode(errors="replace")

    async def put(self, path: str, data: bytes, user: str) -> None:
        process = await self._box.exec.aio("sh", "-c", f"cat > {shlex.quote(path)}", text=False)
        for at in range(0, len(data), 1 << 20):
            process.stdin.write(data[at : at + (1 << 20)])
            await process.stdin.drain.aio()
        process.stdin.write_eof()
        await process.stdin.drain.aio()
        if status := await process.wait.aio():
            raise SandboxError(f"{path} could not be written, status {status}")

    async def get(self, path: str, user: str) -> bytes | None:
        process = await self._box.exec.aio("sh", "-c", shell.read(path), text=False)
        data = await process.stdout.read.aio()
        return data if await process.wait.aio() == 0 else None

    async def end(self) -> None:
        if self._box is not None:
            await self._box.terminate.aio()

    async def alive(self) -> bool:
        return await self._box.poll.aio() is None


class Daytona(Remote):
    """Its commands answer with both outputs in one, so stderr is appended behind a separator."""

    def __init__(self, library: Any, client: Any, box: Any = None) -> None:
        self._library, self._client, self._box = library, client, box

    async def create(self, spec: SandboxSpec, labels: Mapping[str, str]) -> str:
        common = {
            "labels": dict(labels),
            "ttl_minutes": int(spec.ttl_seconds // 60) + 1,
            "auto_stop_interval": 0,
            "os_user": "root",
            **_daytona_network(spec.network, _host(spec)),
        }
        if spec.image:
            params = self._library.CreateSandboxFromImageParams(image=spec.image, **common)
        else:
            params = self._library.CreateSandboxFromSnapshotParams(**common)
        self._box = await self._client.create(params)
        return self._box.id

    async def run(self, cmd: str, user: str, env: Mapping[str, str], timeout: float, idempotent: bool) -> ExecResult:
        switched = f"{'sh' if user == 'root' else f'su {shlex.quote(user)} -s /bin/sh'} -c {shlex.quote(cmd)}"
        script = (
            f"e=$(mktemp); timeout -s KILL {timeout} {switched} 2>$e; s=$?; printf '\\037'; cat $e; rm -f $e; exit $s"
        )
        done = await self._box.process.exec(
            f"sh -c {shlex.quote(script)}", env=dict(env), timeout=int(timeout + SHORT_SECONDS)
        )
        out, _, err = done.result.rpartition("\x1f")
        return TIMED_OUT if done.exit_code == KILLED else done.exit_code, out, err

    async def put(self, path: str, data: bytes, user: str) -> None:
        await self._box.fs.upload_file(data, path)

    async def get(self, path: str, user: str) -> bytes | None:
        if (await self.run(f"[ -f {shlex.quote(path)} ]", user, {}, SHORT_SECONDS, True))[0]:
            return None
        return bytes(await self._box.fs.download_file(path))

    async def end(self) -> None:
        if self._box is not None:
            await self._client.delete(self._box)

    async def restrict(self, network: Network, host: str) -> None:
        await self._box.update_network_settings(**{"network_block_all": False, **_daytona_network(network, host)})


class CloudBackend(RemoteBackend):
    """name: `e2b`, `modal` or `daytona`."""

    def __init__(self, name: str, home: Home, *, start_seconds: float = 60.0) -> None:
        super().__init__(name, home, start_seconds=start_seconds)
        self._library: Any = None
        self._client: Any = None

    def remote(self, box: Any = None) -> Remote:
        library = self._imported()
        if self.name == "e2b":
            return E2B(library, box)
        if self.name == "modal":
            return Modal(library, box)
        if self._client is None:
            self._client = library.AsyncDaytona()
        return Daytona(library, self._client, box)

    async def find(self, home: str) -> AsyncIterator[tuple[Remote, Mapping[str, str]]]:
        library, wanted = self._imported(), {HOME_LABEL: home}
        if self.name == "e2b":
            pages = library.AsyncSandbox.list(query=library.SandboxQuery(metadata=wanted))
            while pages.has_next:
                for found in await pages.next_items():
                    yield self.remote(await library.AsyncSandbox.connect(found.sandbox_id)), found.metadata
        elif self.name == "modal":
            app = await library.App.lookup.aio(APP, create_if_missing=True)
            async for box in library.Sandbox.list.aio(app_id=app.app_id, tags=wanted):
                yield self.remote(box), await box.get_tags.aio()
        else:
            self.remote()
            async for box in self._client.list(library.ListSandboxesQuery(labels=wanted)):
                yield self.remote(box), box.labels

    async def close(self) -> None:
        await super().close()
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _imported(self) -> Any:
        if self._library is None:
            try:
                match self.name:
                    case "e2b":
                        self._library = import_module("e2b")
                    case "modal":
                        self._library = import_module("modal")
                    case _:
                        self._library = import_module("daytona")
            except ImportError as error:
                raise SandboxError(
                    f"agl.sandbox.backend is {self.name}, whose library is missing: pip install {self.name}"
                ) from error
        return self._library


def _host(spec: SandboxSpec) -> str:
    return urlsplit(spec.endpoint).hostname or ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _e2b_network(network: Network, host: str) -> dict[str, Any]:
    if network == "open":
        return {}
    allowed = {"allow_out": [host]} if network == "gateway" and host else {}
    return {"network": {"deny_out": [EVERYTHING], **allowed}}


def _modal_network(network: Network, host: str) -> dict[str, Any]:
    if network == "open":
        return {}
    if network == "none" or not host:
        return {"block_network": True}
    return {"outbound_cidr_allowlist": [f"{host}/32"]} if _is_address(host) else {"outbound_domain_allowlist": [host]}


def _daytona_network(network: Network, host: str) -> dict[str, Any]:
    if network == "open":
        return {}
    if network == "none" or not host:
        return {"network_block_all": True}
    return {"network_allow_list": f"{host}/32"} if _is_address(host) else {"domain_allow_list": host}
