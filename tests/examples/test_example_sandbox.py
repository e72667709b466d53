"""Model-written code can exhaust its own process, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def run(tmp_path: Path):
    from retool.sandbox import run_python

    return lambda code, **more: run_python(["-I", "-c", code], cwd=tmp_path, **more)


async def test_output_and_status_come_back(run):
    ran = await run("print(6 * 7)")
    assert (ran.output, ran.status) == ("42\n", 0)
    ran = await run("raise SystemExit(3)")
    assert ran.status == 3


async def test_there_is_no_network_also_for_children(run):
    assert "PermissionError" in (await run("import socket; socket.socket()")).output
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import socket; socket.socket()'])"
    assert "PermissionError" in (await run(code)).output


async def test_a_program_that_does_not_end_is_ended(run):
    ran = await run("while True: pass", seconds=0.5)
    assert ran.status is None and "stopped after 0.5 s" in ran.output


async def test_memory_and_output_are_limited(run):
    assert "MemoryError" in (await run("x = 'a' * (2 << 30)")).output
    assert len((await run("print('x' * 10_000_000)")).output) <= 2000


async def test_the_environment_stays_here(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    assert "hunter2" not in (await run("import os; print(dict(os.environ))")).output
