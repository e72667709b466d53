"""The driver's process: its log, its failure, and its end with all that it started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slime_agl.algorithm.driver import Command, run_driver
from slime_agl.errors import HostError

ROOT = Path(__file__).parents[2]


def command(folder: Path, program: str) -> Command:
    return Command(words=[sys.executable, "-c", program], directory=folder, environment=dict(os.environ))


async def test_its_output_is_passed_on(tmp_path: Path, capfd):
    await run_driver(command(tmp_path, "print('step 1'); import sys; print('careful', file=sys.stderr)"))
    shown = capfd.readouterr().err
    assert "step 1" in shown and "careful" in shown


async def test_a_failure_carries_the_last_lines(tmp_path: Path):
    program = "[print('line', n) for n in range(100)]; raise RuntimeError('no GPU')"
    with pytest.raises(HostError, match="status 1(.|\n)*line 99(.|\n)*no GPU") as caught:
        await run_driver(command(tmp_path, program))
    assert "line 10\n" not in str(caught.value)


async def test_a_program_that_is_not_there_is_named(tmp_path: Path):
    missing = Command(words=[str(tmp_path / "nothing")], directory=tmp_path, environment=dict(os.environ))
    with pytest.raises(HostError, match="cannot be started"):
        await run_driver(missing)


FAMILY = """
import os, subprocess, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN) if "stubborn" in sys.argv else None
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
apart = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("pids", "w").write(f"{os.getpid()} {child.pid} {apart.pid}")
os.rename("pids", "born")
time.sleep(600)
"""


async def test_cancelling_ends_it_with_all_that_it_started(tmp_path: Path):
    running = asyncio.ensure_future(run_driver(command(tmp_path, FAMILY)))
    while not (tmp_path / "born").exists():
        await asyncio.sleep(0.01)
    pids = [int(word) for word in (tmp_path / "born").read_text().split()]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [pid for pid in pids if alive(pid)] == []


TERMINATED = """
import asyncio, os, sys
from pathlib import Path
from slime_agl.algorithm.driver import Command, ended_by_sigterm, run_driver

async def main():
    try:
        with ended_by_sigterm():
            words = [sys.executable, "-c", sys.argv[1]]
            await run_driver(Command(words=words, directory=Path.cwd(), environment=dict(os.environ)))
    finally:
        open("cleaned", "w").close()

asyncio.run(main())
"""


def test_sigterm_ends_it_with_all_that_it_started_and_then_its_caller(tmp_path: Path):
    words = [sys.executable, "-c", TERMINATED, FAMILY]
    caller = subprocess.Popen(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    while not (tmp_path / "born").exists() and caller.poll() is None:
        time.sleep(0.01)
    caller.terminate()
    assert caller.wait() == 143 and (tmp_path / "cleaned").exists()
    assert [pid for pid in (tmp_path / "born").read_text().split() if alive(int(pid))] == []


def alive(pid: int) -> bool:
    """True for a process that runs; one that its parent has not yet asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
