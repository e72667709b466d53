"""Engines and clouds: what they are asked for, with stand-ins that do it in a sandbox of ours."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sandbox_helpers import made, unusable

from slime_agl.config.sandbox import SandboxConfig
from slime_agl.errors import ConfigError, SandboxError
from slime_agl.sandbox.backends import open_backend
from slime_agl.sandbox.containers import listening_in
from slime_agl.sandbox.engines import Apptainer, DockerLike
from slime_agl.sandbox.kept import KeptBackend
from slime_agl.sandbox.protocol import Limits, SandboxSpec

SPEC = SandboxSpec(
    image="img",
    labels={"run": "7"},
    network="gateway",
    endpoint="https://gate.example/w0",
    env={"A": "1"},
    limits=Limits(cpus=2, memory_mb=512, processes=99),
    ttl_seconds=600,
)


@pytest.fixture
async def inner(tmp_path: Path) -> AsyncIterator[KeptBackend]:
    backend = made("bwrap", tmp_path / "inner")
    yield backend
    await backend.close()


class Boxes:
    """What stands for a cloud: asked: the arguments of each creation; alive: its sandboxes with their labels."""

    def __init__(self, inner: KeptBackend) -> None:
        self.inner = inner
        self.asked: list[dict[str, Any]] = []
        self.alive: dict[str, tuple[Any, dict[str, str]]] = {}

    async def create(self, labels: dict[str, str], **asked: Any) -> Any:
        self.asked.append(asked)
        box = await self.inner.sandbox(SandboxSpec()).__aenter__()
        self.alive[box.sandbox_id] = box, labels
        return box

    async def end(self, name: str) -> None:
        if name in self.alive:
            await self.alive.pop(name)[0].end()


class Ended(Exception):
    def __init__(self, status: int, out: str, err: str) -> None:
        self.exit_code, self.stdout, self.stderr = status, out, err


class TooLate(Exception):
    pass


def fake_e2b(boxes: Boxes) -> Any:
    class AsyncSandbox:
        def __init__(self, box: Any) -> None:
            self._box, self.sandbox_id = box, box.sandbox_id
            self.commands, self.files = (
                SimpleNamespace(run=self._run),
                SimpleNamespace(write=self._write, read=self._read),
            )

        @classmethod
        async def create(cls, *, template: str, timeout: int, metadata: dict[str, str], network: Any = None) -> Any:
            return cls(await boxes.create(metadata, template=template, timeout=timeout, network=network))

        @classmethod
        async def connect(cls, name: str) -> Any:
            return cls(boxes.alive[name][0])

        @staticmethod
        def list(query: Any) -> Any:
            found = [
                SimpleNamespace(sandbox_id=name, metadata=held)
                for name, (_, held) in boxes.alive.items()
                if query.items() <= held.items()
            ]

            class Pages:
                has_next = True

                async def next_items(self) -> Any:
                    self.has_next = False
                    return found

            return Pages()

        async def _run(self, cmd: str, *, user: str, envs: dict[str, str], timeout: float) -> Any:
            status, out, err = await self._box.exec(cmd, env=envs, timeout=timeout)
            if status == 124:
                raise TooLate
            if status:
                raise Ended(status, out, err)
            return Ended(status, out, err)

        async def _write(self, path: str, data: bytes, user: str) -> None:
            await self._box.write_file(path, data)

        async def _read(self, path: str, format: str, user: str) -> bytearray:
            assert format == "bytes"
            if (await self._box.exec(f"test -f {path}"))[0]:
                raise FileNotFoundError(path)
            return bytearray((await self._box.read_file(path)).encode())

        async def is_running(self) -> bool:
            return await self._box.is_alive()

        async def update_network(self, network: Any) -> None:
            boxes.asked.append({"network": network})

        async def kill(self) -> None:
            await boxes.end(self.sandbox_id)

    return SimpleNamespace(
        AsyncSandbox=AsyncSandbox,
        SandboxQuery=lambda metadata: metadata,
        CommandExitException=Ended,
        TimeoutException=TooLate,
        NotFoundException=FileNotFoundError,
    )


def aio(function: Any) -> Any:
    return SimpleNamespace(aio=function)


async def value(of: Any = None) -> Any:
    return of


def fake_modal(boxes: Boxes) -> Any:
    class Sandbox:
        def __init__(self, box: Any) -> None:
            self._box, self.object_id = box, box.sandbox_id
            self.exec, self.poll, self.terminate = aio(self._exec), aio(self._poll), aio(self._terminate)
            self.get_tags = aio(lambda: value(boxes.alive[self.object_id][1]))

        async def _exec(self, *args: str, env: dict[str, str] | None = None, text: bool) -> Any:
            sent = bytearray()

            async def finish() -> tuple[int, str, str]:
                await self._box.write_file("/tmp/stdin", bytes(sent))
                quoted = " ".join("'" + arg.replace("'", "'\"'\"'") + "'" for arg in args)
                return await self._box.exec(f"{quoted} < /tmp/stdin", env=env)

            running: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            async def part(at: int) -> Any:
                if not running.done():
                    running.set_result(await finish())
                found = running.result()[at]
                return found.encode() if isinstance(found, str) else found

            stdin = SimpleNamespace(write=sent.extend, drain=aio(value), write_eof=lambda: None)
            reads = [SimpleNamespace(read=aio(lambda at=at: part(at))) for at in (1, 2)]
            return SimpleNamespace(stdin=stdin, stdout=reads[0], stderr=reads[1], wait=aio(lambda: part(0)))

        async def _poll(self) -> int | None:
            return None if await self._box.is_alive() else 0

        async def _terminate(self) -> None:
            await boxes.end(self.object_id)

    async def create(*, app: Any, tags: dict[str, str], **asked: Any) -> Any:
        return Sandbox(await boxes.create(tags, **asked))

    async def listed(*, app_id: str, tags: dict[str, str]) -> AsyncIterator[Any]:
        for box, held in list(boxes.alive.values()):
            if tags.items() <= held.items():
                yield Sandbox(box)

    Sandbox.create, Sandbox.list = aio(create), aio(listed)  # type: ignore[attr-defined]
    app = SimpleNamespace(lookup=aio(lambda name, create_if_missing: value(SimpleNamespace(app_id="app"))))
    image = SimpleNamespace(from_registry=lambda name: name, debian_slim=lambda: "slim")
    return SimpleNamespace(Sandbox=Sandbox, App=app, Image=image)


def fake_daytona(boxes: Boxes) -> Any:
    class AsyncDaytona:
        async def create(self, params: dict[str, Any]) -> Any:
            box = await boxes.create(params.pop("labels"), **params)
            return self._of(box)

        async def list(self, query: dict[str, str]) -> AsyncIterator[Any]:
            for box, held in list(boxes.alive.values()):
                if query.items() <= held.items():
                    yield self._of(box)

        async def delete(self, box: Any) -> None:
            await boxes.end(box.id)

        async def close(self) -> None:
            boxes.asked.append({"closed": True})

        def _of(self, box: Any) -> Any:
            async def execute(command: str, env: dict[str, str], timeout: int) -> Any:
                status, out, err = await box.exec(command, env=env, timeout=timeout)
                return SimpleNamespace(exit_code=status, result=out + err)

            async def update(**settings: Any) -> None:
                boxes.asked.append(settings)

            return SimpleNamespace(
                id=box.sandbox_id,
                labels=boxes.alive[box.sandbox_id][1],
                process=SimpleNamespace(exec=execute),
                fs=SimpleNamespace(
                    upload_file=lambda data, path: box.write_file(path, data),
                    download_file=lambda path: self._download(box, path),
                ),
                update_network_settings=update,
            )

        async def _download(self, box: Any, path: str) -> bytes:
            return (await box.read_file(path)).encode()

    return SimpleNamespace(
        AsyncDaytona=AsyncDaytona,
        CreateSandboxFromImageParams=dict,
        CreateSandboxFromSnapshotParams=dict,
        ListSandboxesQuery=lambda labels: labels,
    )


FAKES = {"e2b": fake_e2b, "modal": fake_modal, "daytona": fake_daytona}


@pytest.mark.parametrize("name", FAKES)
async def test_a_cloud_is_asked_for_what_the_protocol_says(
    name: str, inner: KeptBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    boxes = Boxes(inner)
    monkeypatch.setitem(sys.modules, name, FAKES[name](boxes))
    config = SandboxConfig(backend=name, dir=str(tmp_path / "home"))
    backend = open_backend(config)
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "run").write_text("echo ran")
    (tmp_path / "tree" / "sub" / "run").chmod(0o755)
    async with backend.sandbox(SPEC) as box:
        assert await box.exec("echo $A$B; echo err >&2; exit 3", env={"B": "2"}) == (3, "12\n", "err\n")
        assert (await box.exec("sleep 60", timeout=1))[0] == 124
        await box.write_file("/deep/file", b"text\n")
        assert (await box.read_file("/deep/file"), await box.read_file("/no/such")) == ("text\n", "")
        await box.upload(tmp_path / "tree", "/app/tree")
        assert (await box.exec("tree/sub/run"))[1] == "ran\n"
        process = await box.start("echo begun; sleep 600")
        assert await process.wait(0.1) is None
        await process.kill()
        assert (await process.wait(), await process.output()) == (137, "begun\n")
        assert box.endpoint == SPEC.endpoint and await box.is_alive()
        if name == "modal":
            with pytest.raises(SandboxError, match="keeps the network"):
                await box.set_network("none")
        else:
            await box.set_network("none")
            assert box.endpoint == ""
        # Another driver on this machine leaves the living alone, and ends what the dead left.
        other = open_backend(config)
        assert await other.reap({}) == 0
        boxes.alive[box.sandbox_id][1]["slime_agl_driver"] = "1-dead"
        assert (await other.reap({"run": "8"}), len(boxes.alive)) == (0, 1)
        assert (await other.reap({"run": "7"}), len(boxes.alive)) == (1, 0)
        await other.close()
    await backend.close()
    said = json.dumps(boxes.asked[0], default=str)
    assert "img" in said and "gate.example" in said and ("600" in said or '"ttl_minutes": 11' in said)


async def test_what_a_cloud_cannot_do_is_said_before_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "e2b", None)
    backend = open_backend(SandboxConfig(backend="e2b", dir=str(tmp_path)))
    for spec, said in [
        (SandboxSpec(network="gateway", endpoint="http://127.0.0.1:1"), "agl.gateway.public_url"),
        (SandboxSpec(shared={"/x": tmp_path}), "share no folders"),
        (SandboxSpec(), "pip install e2b"),
    ]:
        with pytest.raises(SandboxError, match=said):
            await backend.sandbox(spec).__aenter__()
    await backend.close()


def test_a_class_that_is_no_sandbox_is_named(tmp_path: Path):
    for name, said in [("json.JSONDecoder", "lacks __aenter__"), ("no.such.Thing", "cannot be imported")]:
        with pytest.raises(ConfigError, match=said):
            open_backend(SandboxConfig(backend=name, dir=str(tmp_path)))


def test_docker_is_asked_for_labels_limits_mounts_and_no_network(tmp_path: Path):
    spec = SandboxSpec(
        image="img", labels={"run": "7"}, mounts={"/opt/x": tmp_path}, limits=SPEC.limits, ttl_seconds=60
    )
    said = " ".join(DockerLike("docker").create("box", spec, "/home", "1-a"))
    for part in (
        "docker run --detach --rm --init --name box",
        "--label run=7 --label slime_agl.home=/home --label slime_agl.driver=1-a",
        "--security-opt no-new-privileges --network none",
        "--cpus 2 --memory 512m --memory-swap 512m --pids-limit 99",
        f"--volume {tmp_path}:/opt/x:ro",
        "--entrypoint sleep img 61",
    ):
        assert part in said
    assert "--network" not in DockerLike("docker").create("box", SandboxSpec(network="open"), "", "")
    assert "ro" not in Apptainer().create("box", SandboxSpec(shared={"/opt/x": tmp_path}), "", "")[-3].split(":")


FAKE_APPTAINER = """#!/bin/bash
cd "$(dirname "$0")"
case "$1 $2" in
    "instance start") echo "$@" >> asked; name="${!#}"; sleep 600 >/dev/null 2>&1 & echo $! > "box.$name" ;;
    "instance stop") name="${!#}"; kill -9 "$(cat "box.$name")"; rm "box.$name" ;;
    "instance list")
        echo '{"instances": ['
        for box in box.*; do
            [ -e "$box" ] || continue
            echo "$comma{\\"instance\\": \\"${box#box.}\\", \\"pid\\": $(cat "$box")}"; comma=,
        done
        echo ']}' ;;
    "exec "*)
        shift
        while [ "$1" != sh ]; do [ "$1" = --env ] && { export "$2"; shift; }; shift; done
        exec "$@" ;;
esac
"""


async def test_apptainer_instances_are_started_entered_found_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "apptainer").write_text(FAKE_APPTAINER)
    (tmp_path / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = SandboxConfig(backend="apptainer", dir=str(tmp_path / "home"))
    backend = open_backend(config)
    async with backend.sandbox(SandboxSpec(image="img.sif", workdir=str(tmp_path / "work"))) as box:
        assert await box.exec("echo $B; pwd", env={"B": "2"}) == (0, f"2\n{tmp_path}/work\n", "")
        assert await box.is_alive()
        other = open_backend(config)
        assert await other.reap({}) == 0
        assert "--net --network none" in (tmp_path / "asked").read_text()
    assert list(tmp_path.glob("box.*")) == []
    subprocess.run([tmp_path / "apptainer", "instance", "start", "img", "slime_agl-1-dead-abc"], check=True)
    assert await other.reap({}) == 1
    assert list(tmp_path.glob("box.*")) == []
    await other.close()
    await backend.close()


async def test_a_socket_listens_in_the_network_of_another_process(inner: KeptBackend):
    async with inner.sandbox(SandboxSpec()) as box:
        listening = await listening_in(box._life.leader, 7654)  # type: ignore[attr-defined]
        with listening:
            asking = asyncio.ensure_future(
                box.exec("python3 -c \"import socket; print(socket.create_connection(('127.0.0.1', 7654)).recv(9))\"")
            )
            listening.setblocking(False)
            connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            with connection:
                connection.send(b"hello")
            assert (await asking)[1] == "b'hello'\n"
    with pytest.raises(SandboxError, match="shares this machine's network"):
        await listening_in(os.getpid(), 7654)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", 7654)).close()


async def test_an_engine_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    backend = open_backend(SandboxConfig(backend="podman", dir=str(tmp_path / "home")))
    with pytest.raises(SandboxError, match="podman.*installed"):
        await backend.sandbox(SandboxSpec(image="img")).__aenter__()
    with pytest.raises(SandboxError, match="needs an image"):
        await backend.sandbox(SandboxSpec()).__aenter__()
    await backend.close()


@pytest.mark.skipif(bool(unusable("podman")), reason=unusable("podman") or "podman runs")
async def test_a_container_reaches_the_gateway_and_nothing_else(tmp_path: Path, http: Any):
    backend = made("podman", tmp_path)
    spec = SandboxSpec(network="gateway", endpoint=f"{http.url}/rollout/r/attempt/a")
    async with backend.sandbox(spec) as box:
        code = "import urllib.request as r, sys; print(r.urlopen(sys.argv[1]).read().decode())"
        await box.write_file("/app/get.py", code)
        assert (await box.exec(f"python3 get.py {box.endpoint}/x"))[1] == "GET /rollout/r/attempt/a/x\n"
        assert "unreachable" in (await box.exec("python3 get.py http://1.1.1.1/"))[2]
        await box.set_network("none")
        assert (await box.exec(f"python3 get.py {spec.endpoint}/x"))[0] != 0
        assert await backend.reap({}) == 0
    await backend.close()
