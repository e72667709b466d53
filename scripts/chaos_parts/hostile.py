"""Harmful agents: what model-written code does, by accident or on purpose. Each runs among well-behaved ones.

A kind declares how its attempt must end: the boundary that breaks ('' for a good end) and words in its traceback.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from chaos_parts.load import ask, client, converse, mark, seen
from chaos_parts.trials import note_process

HOSTILE: dict[str, Hostile] = {}
FAILED, LATE, FINE = "agent_error", "deadline", ""
LONG = 3600.0


@dataclass(frozen=True, slots=True)
class Hostile:
    """act: (task, llm, folder) -> reward, a coroutine function unless `threaded`. ends: how its attempt may end.

    says: words of its traceback. threads: unendable threads it leaves. alone: not in one process with
    others. children: it starts processes that must not outlive its attempt.
    """

    name: str
    act: Callable[[Any, Any, Path], Any]
    ends: tuple[str, ...] = (FAILED,)
    says: str = ""
    threads: int = 0
    threaded: bool = False
    alone: bool = False
    children: bool = False


def hostile(name: str, *ends: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(act: Callable[..., Any]) -> Callable[..., Any]:
        HOSTILE[name] = Hostile(name, act, ends or (FAILED,), **more)
        return act

    return keep


def raises(name: str, make: Callable[[], BaseException], says: str) -> None:
    """Raise from the main coroutine and from a separate thread."""

    async def act(task: Any, llm: Any, folder: Path) -> float:
        await converse(task, llm, 1)
        raise make()

    def blocking(task: Any, llm: Any, folder: Path) -> float:
        raise make()

    HOSTILE[name] = Hostile(name, act, (FAILED,), says)
    HOSTILE[f"{name}, in a thread"] = Hostile(f"{name}, in a thread", blocking, (FAILED,), says, threaded=True)


class Own(BaseException):
    pass


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not to be printed")

    __repr__ = __str__


class Stuck(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


raises("exit() in the main coroutine", SystemExit, "SystemExit")
raises("KeyboardInterrupt", KeyboardInterrupt, "KeyboardInterrupt")
raises("a BaseException of its own", Own, "Own")
raises("an exception that cannot be printed", Silent, "Silent")
raises("an exception that cannot be pickled", Stuck, "Stuck")
raises("GeneratorExit", GeneratorExit, "GeneratorExit")
raises("StopIteration", StopIteration, "StopIteration")
raises("CancelledError that nobody asked for", asyncio.CancelledError, "CancelledError")
raises("MemoryError", MemoryError, "MemoryError")
raises("a group of exceptions", lambda: BaseExceptionGroup("several", [SystemExit(3), ValueError("x")]), "several")
raises("an exception with a message of 10 MB", lambda: ValueError("x" * 10_000_000), "ValueError")


@hostile("recursion without end", says="RecursionError")
async def _(task: Any, llm: Any, folder: Path) -> float:
    def deeper(depth: int) -> int:
        return deeper(depth + 1)

    return float(deeper(0))


# What stops the event loop


async def _leave() -> None:
    sys.exit("bye")


@hostile("exit() in a child task", says="SystemExit")
async def _(task: Any, llm: Any, folder: Path) -> float:
    await converse(task, llm, 1)
    await asyncio.create_task(_leave())
    return 1.0


@hostile("exit() in a child task that nobody awaits", says="SystemExit")
async def _(task: Any, llm: Any, folder: Path) -> float:
    child = asyncio.create_task(_leave())
    await asyncio.sleep(1.0)
    await converse(task, llm, 1)
    return float(child.done())


@hostile("exit() in a callback", says="SystemExit")
async def _(task: Any, llm: Any, folder: Path) -> float:
    asyncio.get_running_loop().call_soon(sys.exit, "bye")
    await asyncio.sleep(1.0)
    return 1.0


@hostile("exit() in a task that outlives its attempt", FINE, FAILED)
async def _(task: Any, llm: Any, folder: Path) -> float:
    async def later() -> None:
        await asyncio.sleep(0.2)
        sys.exit("bye")

    seen.kept = [*getattr(seen, "kept", []), asyncio.create_task(later())]
    await converse(task, llm, 1)
    return 1.0


@hostile("KeyboardInterrupt in a child task", says="KeyboardInterrupt")
async def _(task: Any, llm: Any, folder: Path) -> float:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    await asyncio.create_task(interrupt())
    return 1.0


@hostile("KeyboardInterrupt in a callback", says="KeyboardInterrupt")
async def _(task: Any, llm: Any, folder: Path) -> float:
    def interrupt() -> None:
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(interrupt)
    await asyncio.sleep(1.0)
    return 1.0


@hostile("loop.stop()", FAILED, FINE, LATE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    asyncio.get_running_loop().stop()
    await converse(task, llm, 1)
    return 1.0


@hostile("loop.close()", says="Cannot close a running event loop")
async def _(task: Any, llm: Any, folder: Path) -> float:
    asyncio.get_running_loop().close()
    return 1.0


@hostile("cancels every task of its loop", FAILED, FINE, LATE, alone=True)
async def _(task: Any, llm: Any, folder: Path) -> float:
    for other in asyncio.all_tasks():
        other.cancel()
    await asyncio.sleep(0)
    return 1.0


@hostile("breaks the loop's exception handler", FINE, FAILED)
async def _(task: Any, llm: Any, folder: Path) -> float:
    def broken(loop: Any, context: Any) -> None:
        raise SystemExit(4)

    asyncio.get_running_loop().set_exception_handler(broken)
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await converse(task, llm, 1)
    return 1.0


# Time


@hostile("blocks the event loop past its deadline", LATE, FAILED, FINE, alone=True)
async def _(task: Any, llm: Any, folder: Path) -> float:
    time.sleep(8.0)
    return 1.0


@hostile("an endless loop in a coroutine", LATE, FAILED, alone=True, threads=2)
async def _(task: Any, llm: Any, folder: Path) -> float:
    while True:
        pass


@hostile("waits for ever", LATE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    await asyncio.sleep(LONG)
    return 1.0


@hostile("refuses to be cancelled", LATE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    began = time.monotonic()
    while time.monotonic() < began + 20.0:
        try:
            await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            continue
    return 1.0


@hostile("an endless loop in a thread", LATE, threaded=True, threads=1, alone=True)
def _(task: Any, llm: Any, folder: Path) -> float:
    while True:
        pass


@hostile("sleeps for ever in a thread", LATE, threaded=True, threads=1)
def _(task: Any, llm: Any, folder: Path) -> float:
    time.sleep(LONG)
    return 1.0


# What it leaves behind


@hostile("leaves a task behind", FINE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    seen.kept = [*getattr(seen, "kept", []), asyncio.create_task(asyncio.sleep(LONG))]
    await converse(task, llm, 1)
    return 1.0


@hostile("leaves threads behind", FINE, FAILED, threads=4)
async def _(task: Any, llm: Any, folder: Path) -> float:
    for _ in range(2):
        threading.Thread(target=time.sleep, args=(LONG,), daemon=True, name="left by an agent").start()
    await converse(task, llm, 1)
    return 1.0


@hostile("exit() in a thread of its own", FINE, FAILED, threaded=True)
def _(task: Any, llm: Any, folder: Path) -> float:
    thread = threading.Thread(target=sys.exit, args=("bye",))
    thread.start()
    thread.join()
    return 1.0


def _sleeper(folder: Path, **more: Any) -> Any:
    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, **more)
    note_process(folder, child.pid)
    return child


@hostile("leaves a process behind", FINE, FAILED, children=True)
async def _(task: Any, llm: Any, folder: Path) -> float:
    seen.kept = [*getattr(seen, "kept", []), _sleeper(folder)]
    await converse(task, llm, 1)
    return 1.0


@hostile("leaves a process behind in a session of its own", FINE, FAILED, children=True)
async def _(task: Any, llm: Any, folder: Path) -> float:
    seen.kept = [*getattr(seen, "kept", []), _sleeper(folder, start_new_session=True)]
    await converse(task, llm, 1)
    return 1.0


@hostile("leaves a grandchild behind", FINE, FAILED, children=True)
async def _(task: Any, llm: Any, folder: Path) -> float:
    shell = await asyncio.create_subprocess_shell("setsid sleep 600 >/dev/null 2>&1 & echo $!", stdout=subprocess.PIPE)
    said, _ = await shell.communicate()
    note_process(folder, int(said))
    await converse(task, llm, 1)
    return 1.0


@hostile("hangs with a process under way", LATE, children=True)
async def _(task: Any, llm: Any, folder: Path) -> float:
    child = _sleeper(folder, start_new_session=True)
    await asyncio.to_thread(lambda: None)
    await asyncio.sleep(LONG)
    return float(child.poll() or 0)


@hostile("waits for a process in a thread", LATE, threaded=True, children=True, threads=1)
def _(task: Any, llm: Any, folder: Path) -> float:
    _sleeper(folder).wait()
    time.sleep(LONG)
    return 1.0


# What belongs to the process


@hostile("changes what belongs to the process", FINE, FAILED, alone=True)
async def _(task: Any, llm: Any, folder: Path) -> float:
    os.chdir("/")
    random.seed(0)
    socket.setdefaulttimeout(0.05)
    sys.stdout = open(os.devnull, "w")  # deliberately careless
    sys.stdout.close()
    for name in ("HOME", "PATH", "LANG", "TMPDIR"):
        os.environ.pop(name, None)
    await converse(task, llm, 1)
    return 1.0


@hostile("a signal handler, and a signal that is ignored", FAILED, FINE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    os.kill(os.getpid(), signal.SIGWINCH)
    os.kill(os.getpid(), signal.SIGURG)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 1.0


# Requests


@hostile("a message of 10 MB", FINE, FAILED, LATE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    messages = [{"role": "user", "content": f"{mark(task, llm.endpoint)} " + "the hello " * 1_000_000}]
    return await _asked(llm, messages)


@hostile("10,000 tools", FINE, FAILED, LATE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    tools = [
        {"type": "function", "function": {"name": f"t{at}", "parameters": {"type": "object"}}} for at in range(10_000)
    ]
    return await _asked(llm, [{"role": "user", "content": f"{mark(task, llm.endpoint)} go"}], tools=tools)


@hostile("10,000 messages", FINE, FAILED, LATE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    messages = [{"role": "user", "content": f"{mark(task, llm.endpoint)} go"}]
    for at in range(5_000):
        messages += [{"role": "assistant", "content": f"a{at}"}, {"role": "user", "content": f"u{at}"}]
    return await _asked(llm, messages)


async def _asked(llm: Any, messages: list[Any], **more: Any) -> float:
    async with client(llm) as http:
        try:
            await ask(http, llm, messages, **more)
        except httpx.HTTPError as error:
            seen.note(error)
            raise
    return 1.0


@hostile("a storm of retries", FINE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    body = {"model": "m", "messages": [{"role": "user", "content": f"{mark(task, llm.endpoint)} go"}]}
    async with client(llm) as http:
        sent = [
            http.post(f"{llm.endpoint}/chat/completions", json=body, headers={"x-stainless-retry-count": str(at)})
            for at in range(100)
        ]
        answers = await asyncio.gather(*sent, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, httpx.HTTPError):
            seen.note(answer)
    texts = {answer.text for answer in answers if isinstance(answer, httpx.Response)}
    return float(len(texts))


@hostile("leaves in the middle of its requests", FINE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    body = {"model": "m", "messages": [{"role": "user", "content": f"{mark(task, llm.endpoint)} go"}], "stream": True}
    for _ in range(10):
        try:
            async with client(llm, timeout=0.002) as http:
                await http.post(f"{llm.endpoint}/chat/completions", json=body)
        except httpx.HTTPError as error:
            seen.note(error)
    await converse(task, llm, 1)
    return 1.0


@hostile("calls after its end", FINE)
async def _(task: Any, llm: Any, folder: Path) -> float:
    async def later() -> None:
        for _ in range(5):
            await asyncio.sleep(0.1)
            try:
                await converse(task, llm, 1, brave=False)
            except httpx.HTTPError:
                continue

    seen.kept = [*getattr(seen, "kept", []), asyncio.create_task(later())]
    await converse(task, llm, 2)
    return 1.0


@hostile("words that no file can hold", FINE, FAILED)
async def _(task: Any, llm: Any, folder: Path) -> float:
    said = mark(task, llm.endpoint) + r" \ud800 \u0000 \u202e"
    raw = f'{{"model":"m","messages":[{{"role":"user","content":"{said}"}}]}}'
    async with client(llm) as http:
        answer = await http.post(
            f"{llm.endpoint}/chat/completions", content=raw, headers={"Content-Type": "application/json"}
        )
        if answer.status_code >= 500:
            raise AssertionError(f"HTTP {answer.status_code} for a lone surrogate")
    return 1.0


# Rewards


class Weird:
    def __float__(self) -> float:
        raise RuntimeError("no number")


for _name, _reward in {
    "NaN": math.nan,
    "infinite": -math.inf,
    "a word": "good",
    "None": None,
    "an empty dict": {},
    "a dict of words": {"a": "b"},
    "a list": [1.0, 2.0],
    "true": True,
    "10**400": 10**400,
    "an object": Weird(),
    "complex": 1j,
    "a dict of NaN": {"r": math.nan},
}.items():

    async def _rewarded(task: Any, llm: Any, folder: Path, reward: Any = _reward) -> Any:
        await converse(task, llm, 1)
        return reward

    HOSTILE[f"a reward that is {_name}"] = Hostile(f"a reward that is {_name}", _rewarded, (FAILED, FINE))
