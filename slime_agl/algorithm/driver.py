"""slime's driver as a process that ends with its caller."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slime_agl.errors import HostError
from slime_agl.lightning.warden import birth, descendants, send
from slime_agl.loops import to_its_end

LINES_KEPT = 40
CHUNK = 65536
TERM_SECONDS = 20.0
PR_SET_PDEATHSIG = 1
RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A driver to start.

    words: the command. environment: all its variables. passed: those that its processes on a Ray cluster need, too.
    """

    words: Sequence[str]
    directory: Path
    environment: Mapping[str, str]
    passed: Mapping[str, str] = field(default_factory=dict)


def on_ray(command: Command) -> Command:
    """The same driver, whose variables reach its processes on a Ray cluster that runs already.

    Such a cluster gives its own environment to what a driver starts there. A job that Ray's job server started tells
    its driver by this variable what to pass on; what it says already is kept.
    """
    try:
        config = json.loads(command.environment.get(RAY_JOB_CONFIG, "{}"))
        runtime = config.setdefault("runtime_env", {})
        runtime["env_vars"] = {**runtime.get("env_vars", {}), **command.passed}
    except (ValueError, AttributeError, TypeError):  # none of ours
        return command
    return replace(command, environment={**command.environment, RAY_JOB_CONFIG: json.dumps(config)})


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM cancels the block, whose cleanup then runs, and ends the process. For the main thread; else no-op.

    By default it would end this process at once, and with it nothing that it started. A handler of its own is kept.

    Raises:
        SystemExit: SIGTERM arrived.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    loop, task, arrived = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None

    def end() -> None:
        arrived.set()
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if arrived.is_set():
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def run_driver(command: Command) -> None:
    """Run the driver to its end and pass its output on to stderr.

    Cancelling ends it with all processes that it started, also those in sessions of their own.

    Raises:
        HostError: it cannot be started, or failed; carries the last lines of its output.
    """
    starting = asyncio.ensure_future(_started(command))
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # It may run already.
        await asyncio.wait({starting})
        if starting.exception() is None:
            await to_its_end(_end(starting.result()))
        raise
    tail: deque[str] = deque(maxlen=LINES_KEPT)
    passing = asyncio.ensure_future(_passed_on(process.stdout, tail))
    try:
        status = await process.wait()
        # What the driver leaves behind may hold the pipe open.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(passing), 2.0)
    finally:
        await to_its_end(_end(process))
        passing.cancel()
    if status != 0:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        last = "\n".join(tail)
        raise HostError(f"slime's driver ended with {how}; the last lines of its log:\n{last}")


async def _started(command: Command) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command.words,
            cwd=command.directory,
            env=dict(command.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    except OSError as error:
        raise HostError(f"{command.words[0]} cannot be started in {command.directory}: {error}") from error


async def _passed_on(output: asyncio.StreamReader | None, tail: deque[str]) -> None:
    assert output is not None
    rest = ""
    while chunk := await output.read(CHUNK):
        text = chunk.decode("utf-8", "replace")
        sys.stderr.write(text)
        sys.stderr.flush()
        *lines, rest = (rest + text).split("\n")
        tail.extend(line.rpartition("\r")[2].rstrip() for line in lines if line.strip())
    if rest.strip():
        tail.append(rest.rpartition("\r")[2].rstrip())


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the driver's process group and descendants: SIGTERM, then SIGKILL. No-op if all are gone."""
    born = {birth(pid) for pid in descendants({birth(process.pid)})} if process.returncode is None else set()
    loop = asyncio.get_running_loop()
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, TERM_SECONDS)):
        deadline = loop.time() + seconds
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        for pid in descendants(born):
            send(pid, number)
        while loop.time() < deadline:
            if process.returncode is not None and not descendants(born) and not _group_alive(process.pid):
                return
            await asyncio.sleep(0.05)


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _end_with_parent() -> None:
    """In the child: be told if the thread that started it dies, as it does with a Trainer that is killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
