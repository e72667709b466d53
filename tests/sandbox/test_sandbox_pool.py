"""The pool: how many sandboxes, how fast, how long; none left over, whoever dies."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sandbox_helpers import made, unusable

from slime_agl.config import Config
from slime_agl.config.sandbox import LimitsConfig, SandboxConfig
from slime_agl.errors import ConfigError, SandboxError
from slime_agl.sandbox.backends import open_backend
from slime_agl.sandbox.pool import Pool
from slime_agl.sandbox.protocol import SandboxSpec

FUSE_SECONDS = 30.0
SPEC = SandboxSpec(labels={"attempt": "at-1"})


class Box:
    """A sandbox that is nothing but its bookkeeping."""

    def __init__(self, backend: Boxes, spec: SandboxSpec) -> None:
        self.backend, self.spec, self.sandbox_id, self.labels = backend, spec, f"box-{len(backend.log)}", spec.labels
        self.endpoint = spec.endpoint

    async def __aenter__(self) -> Box:
        self.backend.log.append(asyncio.get_running_loop().time())
        if self.backend.failures:
            self.backend.failures -= 1
            raise SandboxError("no room")
        await self.backend.gate.wait()
        self.backend.alive.append(self)
        self.backend.most = max(self.backend.most, len(self.backend.alive))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.backend.alive.remove(self)

    async def adopt(self, spec: SandboxSpec) -> None:
        self.spec, self.endpoint = spec, spec.endpoint

    async def exec(self, cmd: str, **_: Any) -> tuple[int, str, str]:
        await asyncio.sleep(float(cmd))
        return 0, str(self.spec.labels), ""

    async def is_alive(self) -> bool:
        return True


class Boxes:
    name = "boxes"

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.most, self.closed = failures, 0, False
        self.log: list[float] = []
        self.alive: list[Box] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def sandbox(self, spec: SandboxSpec) -> Any:
        return Box(self, spec)

    async def reap(self, labels: Mapping[str, str]) -> int:
        return 3

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def pool_of(backend: Any, **config: Any) -> AsyncIterator[Pool]:
    pool = Pool(SandboxConfig(**config), backend)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


async def test_no_more_live_at_a_time_than_configured():
    backend = Boxes()

    async def use(pool: Pool) -> None:
        async with pool.sandbox(SPEC) as box:
            await box.exec("0.01")

    async with pool_of(backend, concurrency=3) as pool:
        await asyncio.gather(*(use(pool) for _ in range(10)))
        assert (backend.most, pool.metrics()["created"], pool.metrics()["alive"]) == (3, 10, 0)
        assert pool.metrics()["reaped"] == 3
    assert backend.closed and backend.alive == []


async def test_creations_keep_their_distance():
    backend = Boxes()
    async with pool_of(backend, create_per_second=50) as pool:
        leases, begun = [pool.sandbox(SPEC) for _ in range(5)], asyncio.get_running_loop().time()
        await asyncio.gather(*(lease.__aenter__() for lease in leases))
        assert all(at >= begun + n / 50 - 0.001 for n, at in enumerate(backend.log))


async def test_a_creation_is_tried_again_and_then_fails_with_the_last_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("slime_agl.sandbox.pool.PAUSE_SECONDS", 0.001)
    async with pool_of(Boxes(failures=2), retries=2) as pool:
        async with pool.sandbox(SPEC):
            pass
        assert (pool.metrics()["retried"], pool.metrics()["failed"]) == (2, 0)
    async with pool_of(Boxes(failures=5), retries=1, concurrency=1) as pool:
        for _ in range(2):  # a failure gives its place back
            with pytest.raises(SandboxError, match="no sandbox after 2 attempts: no room"):
                async with asyncio.timeout(FUSE_SECONDS):
                    await pool.sandbox(SPEC).__aenter__()
        assert (pool.metrics()["retried"], pool.metrics()["failed"], pool.metrics()["alive"]) == (2, 2, 0)


async def test_a_sandbox_ends_when_its_time_is_over():
    async with pool_of(Boxes(), ttl_seconds=0.1, concurrency=1) as pool:
        async with pool.sandbox(SPEC) as box:
            async with asyncio.timeout(FUSE_SECONDS):
                while await box.is_alive():
                    await asyncio.sleep(0.01)
            with pytest.raises(SandboxError, match=r"exceeded 0.1 s \(agl.sandbox.ttl_seconds\)"):
                await box.exec("0")
            async with pool.sandbox(SPEC):  # its place is free
                pass
        assert (pool.metrics()["expired"], pool.metrics()["alive"]) == (1, 0)


async def test_ending_by_label_ends_whoever_holds_or_awaits_one():
    backend = Boxes()
    async with pool_of(backend, concurrency=1) as pool:
        async with pool.sandbox(SPEC) as box, asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_fails(pool.sandbox(SPEC).__aenter__()))
            other = tasks.create_task(pool.sandbox(SandboxSpec(labels={"attempt": "at-2"})).__aenter__())
            running = tasks.create_task(_fails(box.exec("600")))
            while len(pool._leases) < 3:
                await asyncio.sleep(0)
            assert await pool.end({"attempt": "at-1"}) == 2
            assert "was ended" in await waiting
            running.cancel()
            assert (await other).labels == {"attempt": "at-2"}
        assert [held.labels for held in backend.alive] == [{"attempt": "at-2"}]


async def _fails(coroutine: Any) -> str:
    with pytest.raises(SandboxError) as caught:
        await coroutine
    return str(caught.value)


async def test_cancelling_who_waits_for_a_creation_ends_it():
    backend = Boxes()
    backend.gate.clear()
    async with pool_of(backend, concurrency=1) as pool:
        task = asyncio.ensure_future(pool.sandbox(SPEC).__aenter__())
        while not backend.log:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and not pool._leases and backend.alive == []
        await pool.on_loop(_set(backend.gate))
        async with pool.sandbox(SPEC):
            assert len(backend.alive) == 1


async def _set(event: asyncio.Event) -> None:
    event.set()


async def test_warm_sandboxes_take_over_what_an_execution_brings():
    backend = Boxes()
    async with pool_of(backend, warm=2) as pool:
        async with pool.sandbox(SandboxSpec(labels={"n": "1"})):
            while pool.metrics()["warm"] < 2:
                await asyncio.sleep(0.001)
        created = len(backend.log)
        async with pool.sandbox(SandboxSpec(labels={"n": "2"}, network="gateway", endpoint="http://h:1")) as box:
            assert await box.exec("0") == (0, "{'n': '2'}", "")
            assert box.endpoint == "http://h:1" and pool.metrics()["warm_used"] == 1
            assert created == 3
        async with pool.sandbox(SandboxSpec(image="other")):
            assert pool.metrics()["warm_used"] == 1, "another kind"
    assert backend.alive == []


def test_the_configuration_fills_what_a_spec_leaves_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://index")
    config = SandboxConfig(image="base", env=("PIP_INDEX_URL",), mounts={"/opt/x": "/srv/x"}, ttl_seconds=60)
    pool = Pool(config, Boxes())
    spec = pool.sandbox(SandboxSpec(network="open", env={"A": "1"})).spec
    assert (spec.image, spec.env) == ("base", {"PIP_INDEX_URL": "https://index", "A": "1"})
    assert (spec.mounts, spec.limits.processes, spec.ttl_seconds) == ({"/opt/x": Path("/srv/x")}, 1024, 60)
    assert pool.sandbox(SandboxSpec(image="own")).spec.env == {}, "only where programs are installed"


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"ttl_seconds": 0}, "ttl_seconds is 0"),
        ({"create_per_second": -1}, "create_per_second is -1"),
        ({"limits": {"processes": 0}}, "limits.processes is 0"),
        ({"limits": {"cpus": 0}}, "limits.cpus is 0"),
        ({"mounts": {"x": "/x"}}, "absolute path inside"),
        ({"backend": "bwarp"}, "Did you mean 'bwrap'"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_named(mapping: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        open_backend(Config.read({"agent": "a.b", "sandbox": mapping}).sandbox)


@pytest.mark.parametrize("name", ["bwrap", "local"])
async def test_64_sandboxes_at_a_time(name: str, tmp_path: Path):
    async def use(pool: Pool, number: int) -> str:
        async with pool.sandbox(SandboxSpec(limits=SandboxSpec().limits)) as box:
            await box.write_file("/app/x", str(number))
            return (await box.exec("cat x", timeout=120))[1]

    async with pool_of(made(name, tmp_path), limits=LimitsConfig(processes=None), start_seconds=300) as pool:
        pool._backend.start_seconds = 300
        assert await asyncio.gather(*(use(pool, n) for n in range(64))) == [str(n) for n in range(64)]


@pytest.mark.parametrize("name", ["bwrap", "local"])
async def test_a_warm_sandbox_reaches_the_gateway_of_its_execution(name: str, tmp_path: Path, http: Any):
    spec = SandboxSpec(network="gateway", endpoint=f"{http.url}/rollout/r/attempt/a", env={"A": "1"})
    code = "python3 -c 'import urllib.request as r, sys; print(r.urlopen(sys.argv[1]).read().decode())'"
    async with pool_of(made(name, tmp_path), warm=1) as pool:
        for round in range(2):
            async with pool.sandbox(spec) as box:
                assert await box.exec(f"echo $A; {code} {box.endpoint}/x") == (0, "1\nGET /rollout/r/attempt/a/x\n", "")
            while round == 0 and pool.metrics()["warm"] < 1:
                await asyncio.sleep(0.01)
        assert pool.metrics()["warm_used"] == 1


DRIVER = """
import asyncio, sys
from slime_agl.config.sandbox import SandboxConfig
from slime_agl.sandbox.backends import open_backend
from slime_agl.sandbox.pool import Pool
from slime_agl.sandbox.protocol import SandboxSpec

async def main():
    config = SandboxConfig(backend=sys.argv[1], dir=sys.argv[2])
    pool = Pool(config, open_backend(config))
    await pool.start()
    for n in range(2):
        box = pool.sandbox(SandboxSpec(labels={"n": str(n)}))
        await box.__aenter__()
        await box.exec(f"(setsid sleep {sys.argv[3]} &); touch x; true")
        await box.start(f"sleep {sys.argv[3]}")
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_two_drivers_in_one_process_leave_each_other_alone(tmp_path: Path):
    backend, other = made("local", tmp_path), made("local", tmp_path)
    async with backend.sandbox(SandboxSpec()) as box:
        assert [await other.reap({}) for _ in range(2)] == [0, 0]
        assert await box.exec("echo lives") == (0, "lives\n", "")
    await backend.close()
    await other.close()


@pytest.mark.parametrize("keepers_too", [False, True])
@pytest.mark.parametrize("name", ["bwrap", "local"])
async def test_a_killed_driver_leaves_nothing(
    name: str, keepers_too: bool, tmp_path: Path, processes: Callable[[str], set[int]]
):
    """keepers_too: so that nothing ends the commands but the next driver."""
    if reason := unusable(name):
        pytest.skip(reason)
    seconds = f"35{secrets.randbelow(10**6)}"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, name, str(tmp_path / "boxes"), seconds], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
    while len(processes(f"sleep {seconds}")) < 4:
        await asyncio.sleep(0.01)
    alive = open_backend(SandboxConfig(backend=name, dir=str(tmp_path / "boxes")))
    assert await alive.reap({}) == 0, "another driver's, which lives"
    keepers = processes("inside.keeper") & children(driver.pid)
    driver.kill()
    if keepers_too:
        for pid in keepers:
            os.kill(pid, signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    if not keepers_too:
        while processes(f"sleep {seconds}"):
            await asyncio.sleep(0.01)
    assert await alive.reap({"n": "1"}) == 1
    assert await alive.reap({}) == 1
    assert processes(f"sleep {seconds}") == set()
    assert list((tmp_path / "boxes").iterdir()) == []
    await alive.close()


def children(pid: int) -> set[int]:
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.add(int(folder.name))
    return found
