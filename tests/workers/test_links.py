"""Links: calls into another process, over a socket pair and over Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from slime_agl.config import WorkersConfig
from slime_agl.errors import EngineError
from slime_agl.workers.link import Link, Plan, Transport, WorkerDied
from slime_agl.workers.placement import Placement
from slime_agl.workers.subprocesses import Subprocesses


def subprocesses(_: pytest.FixtureRequest) -> Transport:
    return Subprocesses()


def ray_actors(request: pytest.FixtureRequest) -> Transport:
    request.getfixturevalue("cluster")
    from slime_agl.workers.ray_actors import RayActors, nodes

    return RayActors(1, Placement(WorkersConfig(), nodes))


TARGET = "tests.workers.targets:Target"


KINDS = [
    pytest.param(subprocesses, id="subprocess"),
    pytest.param(ray_actors, id="ray", marks=pytest.mark.ray),
]
ON_RAY = pytest.mark.parametrize("transport", KINDS[1:], indirect=True)


@pytest.fixture(params=KINDS)
def transport(request: pytest.FixtureRequest) -> Transport:
    return request.param(request)


@pytest.fixture
async def start(transport: Transport):
    links = []

    async def started(**plan) -> Link:
        links.extend(await transport.start([Plan(**{"name": "w0", "target": TARGET, "slots": 4, **plan})]))
        return links[-1]

    yield started
    for link in links:
        await link.kill()


@pytest.fixture
async def link(start) -> Link:
    return await start(arguments={"greeting": "hi"})


async def appears(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


async def test_a_call_comes_back_with_its_result(link: Link) -> None:
    assert await link.call("greet", "you") == "hi you"


async def test_calls_do_not_wait_for_each_other(link: Link, tmp_path: Path) -> None:
    waiting = asyncio.ensure_future(link.call("wait", str(tmp_path / "began"), str(tmp_path / "unwound"), lane="run"))
    await appears(tmp_path / "began")
    assert await link.call("greet", "you") == "hi you"
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_cancelled_call_has_unwound_in_the_worker_when_it_returns(link: Link, tmp_path: Path) -> None:
    began, unwound = tmp_path / "began", tmp_path / "unwound"
    waiting = asyncio.ensure_future(link.call("wait", str(began), str(unwound), lane="run"))
    await appears(began)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert unwound.exists()


async def test_a_call_that_is_cancelled_before_it_could_begin_ends(start, tmp_path: Path) -> None:
    link = await start()  # it is not ready yet: call and cancellation reach it together
    for method, arguments in (("wait", (str(tmp_path / "began"), str(tmp_path / "unwound"))), ("greet", ("you",))):
        for lane in ("run", "control"):
            call = asyncio.ensure_future(link.call(method, *arguments, lane=lane))
            await asyncio.sleep(0)
            call.cancel()
            done, _ = await asyncio.wait({call}, timeout=20)
            assert done, f"{method} never came back"
            with pytest.raises(asyncio.CancelledError):
                await call
    assert await link.call("greet", "you") == "hello you"


async def test_arrays_travel_uncopied(link: Link) -> None:
    array = np.arange(1_000_000, dtype=np.int32)
    back = await link.call("same", array)
    assert back.dtype == array.dtype and (back == array).all()
    assert await link.call("shares_memory", array)


@ON_RAY
async def test_on_ray_small_arrays_travel_within_the_bytes(link: Link) -> None:
    from slime_agl.workers.ray_actors import INLINE_BYTES, opened, sealed

    array = np.arange(INLINE_BYTES // 8, dtype=np.int64)
    assert (await link.call("same", array) == array).all()
    assert isinstance(sealed(array), bytes) and (opened(sealed(array)) == array).all()
    body, (buffer,) = sealed(np.append(array, 0))
    assert len(body) < 1000 and buffer.raw().nbytes == INLINE_BYTES + 8


@ON_RAY
@pytest.mark.parametrize("module", [__name__, "__main__"])
async def test_on_ray_classes_travel_that_only_this_process_knows(
    link: Link, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    class Row:
        question = "how many?"

    if module == "__main__":  # as in a script that builds its rows itself
        Row.__module__, Row.__qualname__ = module, "Row"
        monkeypatch.setattr(sys.modules[module], "Row", Row, raising=False)
    assert (await link.call("same", Row())).question == "how many?"
    row, numbers = await link.call("same", (Row(), np.arange(100_000)))
    assert row.question == "how many?" and (numbers == np.arange(100_000)).all()


async def test_an_error_of_ours_arrives_as_what_it_is(link: Link) -> None:
    with pytest.raises(EngineError, match="no answer") as caught:
        await link.call("fail", "engine")
    assert caught.value.status == 503
    assert "in w0:" in caught.value.__notes__[0] and "targets.py" in caught.value.__notes__[0]


async def test_an_error_that_cannot_travel_arrives_in_words(link: Link) -> None:
    with pytest.raises(RuntimeError, match="Unpicklable: a and b"):
        await link.call("fail", "other")


async def test_an_exit_ends_the_call_and_not_the_worker(link: Link) -> None:
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await link.call("fail", "exit")
    assert await link.call("greet", "you") == "hi you"


async def test_a_result_that_cannot_travel_is_an_error(link: Link) -> None:
    with pytest.raises(TypeError, match="pickle"):
        await link.call("lock")
    assert await link.call("greet", "you") == "hi you"


async def test_a_death_ends_all_calls_and_names_itself(link: Link, tmp_path: Path) -> None:
    waiting = asyncio.ensure_future(link.call("wait", str(tmp_path / "began"), str(tmp_path / "unwound"), lane="run"))
    await appears(tmp_path / "began")
    with pytest.raises(WorkerDied, match="worker w0 .*ended"):
        await link.call("die")
    with pytest.raises(WorkerDied, match="worker w0 .*ended"):
        await waiting
    assert link.dead
    with pytest.raises(WorkerDied, match="worker w0 .*ended"):
        await link.call("greet", "you")


async def test_variables_are_set_before_the_target_is_made(start) -> None:
    link = await start(environment={"SOME_KEY": "value"})
    assert await link.call("variable", "SOME_KEY") == "value"


async def test_a_target_that_cannot_be_made_says_so(start) -> None:
    link = await start(target="tests.workers.targets:Missing")
    with pytest.raises((AttributeError, WorkerDied), match="Missing"):
        await link.call("greet", "you")


async def test_a_subprocess_ends_when_its_starter_has_gone() -> None:
    (link,) = await Subprocesses().start([Plan(name="w0", target=TARGET)])
    fd = os.pidfd_open(await link.call("pid"))
    link._writer.close()  # what the kernel does when this process dies
    try:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(fd, ended.set)
        await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
    await link.kill()


async def test_a_subprocess_does_not_hear_ctrl_c() -> None:
    (link,) = await Subprocesses().start([Plan(name="w0", target=TARGET)])
    try:
        os.kill(await link.call("pid"), signal.SIGINT)
        assert await link.call("greet", "you") == "hello you"
    finally:
        await link.kill()
