"""Processes that an attempt started end with it, and nobody else's do."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from slime_agl.lightning import processes

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux's /proc")

SLEEP = "sleep 1000"
PATIENCE = 60
# The shell that starts the daemon is gone when it says the pid, so init has the daemon.
DAEMON = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"


class Gone:
    """Waits for the end of a process by its pid, without a look at the clock."""

    def __init__(self, pid: int) -> None:
        self.fd = os.pidfd_open(pid)

    def __call__(self) -> bool:
        try:
            return bool(select.select([self.fd], [], [], PATIENCE)[0])
        finally:
            os.close(self.fd)


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.3)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("how", ["deadline", "end", "error", "cancel"])
async def test_a_program_and_its_daemon_end_with_the_attempt(bench, how) -> None:
    gone, started = [], asyncio.Event()

    async def agent(task):
        gone.append(Gone((await asyncio.create_subprocess_exec("sleep", "1000")).pid))
        said = await asyncio.create_subprocess_shell(DAEMON, stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"]})
        gone.append(Gone(int((await said.communicate())[0])))
        started.set()
        if how == "error":
            raise RuntimeError("as told")
        if how in ("deadline", "cancel"):
            await forever()

    made = await bench(agent, timeout_seconds=5.0 if how == "deadline" else None)
    run = asyncio.create_task(made.run({}))
    await started.wait()
    if how == "cancel":
        run.cancel()
    await asyncio.wait({run})
    assert [await asyncio.to_thread(each) for each in gone] == [True, True]
    assert (await made.service.metrics())["ended_processes"] == 2


async def test_a_program_that_ignores_sigterm_is_killed(bench) -> None:
    gone = []

    async def agent(task):
        stubborn = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()",
            stdout=subprocess.PIPE,
        )
        await stubborn.stdout.readline()
        gone.append(Gone(stubborn.pid))

    await (await bench(agent)).run({})
    assert await asyncio.to_thread(gone[0])


async def test_a_blocking_agent_is_freed_by_the_end_of_its_program(bench) -> None:
    def agent(task):
        subprocess.run(["sleep", "1000"], check=False)

    made = await bench(agent, timeout_seconds=1.0)
    assert (await made.run({})).final.status == "timeout"
    metrics = await made.service.metrics()
    assert (metrics["ended_processes"], metrics["abandoned_threads"]) == (1, 0)


async def test_a_forked_child_ends_with_the_attempt(bench) -> None:
    gone = []

    async def agent(task):
        child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
        child.start()
        gone.append(Gone(child.pid))

    made = await bench(agent)
    await made.run({})
    assert await asyncio.to_thread(gone[0])
    assert (await made.service.metrics())["ended_processes"] == 1


async def test_what_others_started_lives_on(bench) -> None:
    shared = subprocess.Popen(["sleep", "1000"])
    both = asyncio.Event()
    running = {}

    async def agent(task):
        child = await asyncio.create_subprocess_exec("sleep", "1000")
        running[task["n"]] = child
        if len(running) == 2:
            both.set()
        await both.wait()
        if task["n"] == 1:
            await task["other"]
            assert child.returncode is None and shared.poll() is None

    made = await bench(agent)
    first = asyncio.create_task(made.run({"n": 0}))
    second = await made.run({"n": 1, "other": first})
    assert second.final.error is None
    assert shared.poll() is None
    shared.kill()
    shared.wait()


async def test_processes_may_be_left_alone_on_request(bench) -> None:
    started = []

    async def agent(task):
        started.append(subprocess.Popen(["sleep", "1000"]))

    made = await bench(agent, end_leftovers=False)
    await made.run({})
    assert started[0].poll() is None
    started[0].kill()
    started[0].wait()


async def test_an_agent_that_is_left_behind_starts_nothing_more(bench, monkeypatch) -> None:
    import threading

    release, tried = threading.Event(), []

    def agent(task):
        release.wait(PATIENCE)
        try:
            subprocess.Popen(["sleep", "1000"])
        except PermissionError as error:
            tried.append(str(error))
        done.set()

    done = threading.Event()
    await (await bench(agent, timeout_seconds=0.02)).run({})
    release.set()
    await asyncio.to_thread(done.wait, PATIENCE)
    assert "has ended, it can start no process" in tried[0]


def test_a_killed_driver_leaves_no_process(tmp_path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(
        textwrap.dedent("""
        import asyncio, os, signal, subprocess
        from slime_agl.lightning.owner import Owner, current
        from slime_agl.lightning.processes import Processes

        async def main():
            Processes().install()
            current.set(Owner("ro-1", "at-1"))
            daemon = await asyncio.create_subprocess_shell("setsid sleep 1000 & echo $!", stdout=subprocess.PIPE)
            forked = os.fork()
            if not forked:
                signal.pause()
            print(int(await daemon.stdout.readline()), forked, flush=True)
            await asyncio.get_running_loop().create_future()

        asyncio.run(main())
        """)
    )
    with subprocess.Popen([sys.executable, "-W", "ignore", str(driver)], stdout=subprocess.PIPE, text=True) as running:
        gone = [Gone(int(pid)) for pid in running.stdout.readline().split()]
        running.kill()
    assert [each() for each in gone] == [True, True]


async def test_a_child_that_tells_its_birth_late_ends_with_the_attempt(bench, monkeypatch) -> None:
    """A forked child may not have run at all when its attempt is over."""
    ready, go = os.pipe(), os.pipe()
    tell, gone = processes.Processes.tell_birth, []

    def late(self, owner) -> None:
        os.read(go[0], 1)
        tell(self, owner)

    monkeypatch.setattr(processes.Processes, "tell_birth", late)

    async def agent(task):
        if (pid := os.fork()) == 0:
            os.write(ready[1], b".")
            signal.pause()
        gone.append(Gone(pid))
        # After the attempt has begun to look for what it started.
        asyncio.get_running_loop().call_later(0.2, os.write, go[1], b".")

    made = await bench(agent)
    await made.run({})
    assert await asyncio.to_thread(gone[0])
    for end in (*ready, *go):
        os.close(end)
