"""Part `intruders`: half-open sockets, malformed requests, requests from web pages and endless bodies, during a run.

None of them is sampled or answered with a 5xx, the run continues, and the process does not grow.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import resource
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import agentlightning as agl

from chaos_parts.engine import EngineProcess, Plan, end_with
from chaos_parts.load import Drive, converse, seen
from chaos_parts.outcome import Outcome
from chaos_parts.setting import Setting
from chaos_parts.trials import Trial

KINDS: dict[str, Callable[[random.Random, str, str], bytes]] = {}
MARK = "[[|intruder|x|y]] let me in"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": MARK}]}).encode()
GROWTH_MIB = 256
AT_ONCE = 16
PATIENCE = 20.0
FLOOD_MIB = 96


def request(
    base: str,
    host: str,
    body: bytes = BODY,
    *headers: str,
    method: str = "POST",
    key: str = "dummy",
    kind: str = "application/json",
    length: Any = None,
    path: str = "/chat/completions",
) -> bytes:
    lines = [f"{method} {base}{path} HTTP/1.1", f"Host: {host}", f"Content-Type: {kind}"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"Content-Length: {len(body) if length is None else length}"] if length != "" else []
    return "\r\n".join([*lines, *headers, "Connection: close", "", ""]).encode("utf-8", "replace") + body


def kind(name: str) -> Callable[[Any], Any]:
    def keep(make: Any) -> Any:
        KINDS[name] = make
        return make

    return keep


def shaped(name: str, *args: Any, body: bytes = BODY, **more: Any) -> None:
    KINDS[name] = lambda chance, base, host: request(base, host, body, *args, **more)


shaped("a web page's form", "Origin: https://evil.example", kind="text/plain", key="")
shaped("a web page's fetch", "Origin: https://evil.example")
shaped("a page of this machine", "Origin: http://localhost:8000", "Sec-Fetch-Mode: cors")
shaped("text/plain", kind="text/plain", key="")
shaped("a foreign host's name", key="dummy")
KINDS["a foreign host's name"] = lambda chance, base, host: request(base, "evil.example")
shaped("a key of nobody", key="sk-agl-" + "x" * 32)
shaped("a key that is not ASCII", key="sk-agl-schlüssel-\u4e16")
shaped("an attempt of nobody", path="/../../rollout/ro-x/attempt/at-x/v1/chat/completions")
shaped("JSON cut short", body=BODY[:-5])
shaped("JSON too deep", body=b'{"model":"m","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}")
shaped("JSON with NaN", body=BODY.replace(b'"m"', b"NaN"))
shaped("not UTF-8", body=BODY.replace(b"let", b"\xff\xfe"))
shaped("no body", body=b"")
shaped("a gzip bomb", "Content-Encoding: gzip", body=gzip.compress(b'{"model":"m","messages":"' + b" " * 30_000_000))
shaped("gzip", "Content-Encoding: gzip", body=gzip.compress(BODY))
shaped("a length that is negative", length=-1)
shaped("a length that is a word", length="many")
shaped("two lengths", "Content-Length: 5")
shaped("a length and chunks", "Transfer-Encoding: chunked")
shaped("chunks of nonsense", "Transfer-Encoding: chunked", length="", body=b"zz\r\nhello\r\n")
shaped("a method of its own", method="BREW")
shaped("GET with a body", method="GET")
shaped("a path of 64 kB", path="/" + "x" * 65_536)
shaped("a path with a zero byte", path="/chat/completions%00")
shaped("a header of 1 MB", "X-Long: " + "x" * 1_000_000)
shaped("10,000 headers", *[f"X-{at}: y" for at in range(10_000)])
shaped("a header without a colon", "nonsense")
for _name, _change in {
    "messages that are a word": {"messages": "hi"},
    "messages that are numbers": {"messages": [1, 2]},
    "no messages": {"messages": []},
    "a role of its own": {"messages": [{"role": "king", "content": MARK}]},
    "content that is a number": {"messages": [{"role": "user", "content": 7}]},
    "tools that are a word": {"tools": "all"},
    "max_tokens that is negative": {"max_tokens": -5},
    "n that is huge": {"n": 10**9},
    "n that is a word": {"n": "two"},
    "temperature that is an object": {"temperature": {}},
    "stop of 1 MB": {"stop": [{"x": "y" * 1_000_000}]},
    "a field of nobody": {"logit_bias": {"5": 100}},
}.items():
    shaped(_name, body=json.dumps({**json.loads(BODY), **_change}).encode())


@kind("bytes at random")
def _(chance: random.Random, base: str, host: str) -> bytes:
    return chance.randbytes(chance.randrange(1, 400)) + b"\r\n\r\n"


@kind("HTTP/2")
def _(chance: random.Random, base: str, host: str) -> bytes:
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@kind("TLS")
def _(chance: random.Random, base: str, host: str) -> bytes:
    return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(200)


@kind("a request with a byte changed")
def _(chance: random.Random, base: str, host: str) -> bytes:
    # Refused for several reasons, so that no single changed byte admits it: a changed key may pass as a placeholder.
    raw = bytearray(request(base, "evil.example", BODY, "Origin: https://evil.example", key="sk-agl-wrong"))
    raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw)


HALF_OPEN = (
    lambda base, host: b"",
    lambda base, host: b"POST /rollout/x HTTP/1.1\r\nHost: ",
    lambda base, host: request(base, host, b"", length=1000),
    lambda base, host: request(base, host, BODY[:20], length=len(BODY)),
    lambda base, host: request(base, host, b"ff\r\nab", "Transfer-Encoding: chunked", length=""),
)


def trials(setting: Setting) -> list[Trial]:
    return [
        Trial(
            "intruders",
            ("half-open sockets and malformed requests",),
            setting.bound(_run),
            120.0 if setting.quick else 900.0,
            setting.seed,
        )
    ]


def _run(setting: Setting, trial: Trial, folder: Path) -> Outcome:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    record = folder / "record.jsonl"

    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        seen.executions += 1
        (folder / "part").write_text(llm.endpoint, "utf-8")
        (folder / "part").replace(folder / "endpoint")
        await converse(task, llm, 4)
        return 1.0

    with EngineProcess(Plan(record, trial.seed, latency=0.1), setting.tokenizer) as engine:
        intruder = _start(setting, trial, folder)
        rows = [{"prompt": f"row {at}", "metadata": {"kind": ""}} for at in range(8)]
        drive = Drive(folder, setting.checkpoint, engine.url, rows, agent=agent, batch=4)
        drive.step(trial.who)
        Path("/proc/self/clear_refs").write_text("5")  # resets the memory peak
        before = memory("VmRSS")
        ended = 0
        while not ended and not drive.outcome.broken:
            drive.step(trial.who)
            ended, _ = os.waitpid(intruder, os.WNOHANG)
        if not ended:
            os.kill(intruder, signal.SIGKILL)
            os.waitpid(intruder, 0)
        drive.step(trial.who)
        grown = memory("VmHWM") - before
        outcome = drive.close(trial.who, [record])
    _judge(trial, folder, record, grown, outcome)
    return outcome


def _judge(trial: Trial, folder: Path, record: Path, grown: float, outcome: Outcome) -> None:
    found = json.loads((folder / "intruder.json").read_text("utf-8"))
    outcome.faults.update(found["sent"])
    for name, count in found["failed"].items():
        outcome.breaks(f"intruders: {name}", f"was answered with a 5xx {count} times")
    for name, count in found["served"].items():
        outcome.breaks(f"intruders: {name}", f"was served {count} times: HTTP 200")
    for name, count in found["silent"].items():
        outcome.breaks(f"intruders: {name}", f"had no answer and no end in {PATIENCE:g} s {count} times")
    lines = record.read_bytes().splitlines()
    if taken := sum(b'"intruder"' in line[:200] for line in lines):
        outcome.breaks(trial.who, f"{taken} turns were sampled for intruders")
    if grown > GROWTH_MIB:
        outcome.breaks(trial.who, f"memory grew by {grown:.0f} MiB under them, {GROWTH_MIB} are allowed")
    outcome.notes.append(
        f"intruders: memory peaked {grown:.0f} MiB above the run's; {found['open']} sockets were held half open"
    )


def memory(name: str, pid: int | str = "self") -> float:
    """MiB of memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def _start(setting: Setting, trial: Trial, folder: Path) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            end_with(parent)
            asyncio.run(_Intruder(setting, trial, folder).run())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    return pid


class _Intruder:
    def __init__(self, setting: Setting, trial: Trial, folder: Path) -> None:
        self._count, self._half = (500, 100) if setting.quick else (10_000, 1_000)
        self._flood = FLOOD_MIB
        self._chance = random.Random(f"intruder {trial.seed}")
        self._folder = folder
        self._found: dict[str, Counter[str]] = {
            "sent": Counter(),
            "failed": Counter(),
            "served": Counter(),
            "silent": Counter(),
        }

    async def run(self) -> None:
        while not (self._folder / "endpoint").exists():
            await asyncio.sleep(0.05)
        held = await asyncio.gather(*(self._half_open(at) for at in range(self._half)), return_exceptions=True)
        names = list(KINDS)
        slots = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._send(slots, names[at % len(names)]) for at in range(self._count)))
        await asyncio.gather(*(self._pour() for _ in range(4)))
        found = {**self._found, "open": sum(not isinstance(one, BaseException) for one in held)}
        (self._folder / "intruder.json").write_text(json.dumps(found), "utf-8")

    def _target(self) -> tuple[str, str, int]:
        parts = urlsplit((self._folder / "endpoint").read_text("utf-8"))
        return parts.path, parts.netloc, parts.port or 0

    async def _half_open(self, at: int) -> Any:
        base, host, port = self._target()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HALF_OPEN[at % len(HALF_OPEN)](base, host))
        self._found["sent"]["half-open"] += 1
        return writer

    async def _send(self, slots: asyncio.Semaphore, name: str) -> None:
        async with slots:
            base, host, port = self._target()
            try:
                async with asyncio.timeout(PATIENCE):
                    status = await self._ask(port, KINDS[name](self._chance, base, host))
            except TimeoutError:
                # The gateway rightly waits for what may be the start of a request.
                self._found["silent"][name] += name not in ("bytes at random", "a request with a byte changed", "TLS")
                status = 0
            except OSError:
                status = 0
            self._found["sent"][name] += 1
            self._found["failed"][name] += status >= 500
            self._found["served"][name] += 200 <= status < 300
            for counts in self._found.values():
                counts += Counter()

    async def _ask(self, port: int, raw: bytes) -> int:
        """Return the answer's status, 0 for a closed connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(raw)
            line = await reader.readline()
        finally:
            writer.transport.abort()
        words = line.split()
        return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0

    async def _pour(self) -> None:
        """Send a body for as long as the gateway accepts it."""
        base, host, port = self._target()
        self._found["sent"]["a body without end"] += 1
        try:
            async with asyncio.timeout(PATIENCE):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request(base, host, b'{"model": "', length=1 << 29))
                for _ in range(self._flood):
                    writer.write(b"x" * (1 << 20))
                    await writer.drain()
                writer.transport.abort()
        except (OSError, TimeoutError):
            return
