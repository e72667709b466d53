"""Measure what a sandbox costs beside a bare subprocess, in interleaved rounds.

Creation includes the first command and the end. `at once` is the time until all of them have come and gone, divided by
that of as many bare subprocesses at once; growth compares the cost of one among 64 with that of one alone. Commands are
`true` in a sandbox that exists, beside `true` as a subprocess. Memory is what its processes hold for themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from slime_agl.config.sandbox import SandboxConfig
from slime_agl.errors import SandboxError
from slime_agl.sandbox.backends import KEPT, open_backend
from slime_agl.sandbox.protocol import Backend, SandboxSpec

AT_ONCE = (1, 8, 64)
COMMANDS = 200
BARE = "bare"


@dataclass(frozen=True, slots=True)
class Found:
    """seconds: for all, by how many at once. command: seconds each. memory: MiB each."""

    seconds: dict[int, float]
    command: float
    memory: float


async def bare() -> None:
    process = await asyncio.create_subprocess_exec("sh", "-c", "true", stdin=asyncio.subprocess.DEVNULL)
    await process.wait()


async def sandboxed(backend: Backend) -> None:
    async with backend.sandbox(SandboxSpec()) as box:
        await box.exec("true", check=True)


async def seconds_of(one: Callable[[], Awaitable[None]], at_once: int) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(at_once)))
    return time.perf_counter() - begun


async def command_seconds(backend: Backend) -> float:
    async with backend.sandbox(SandboxSpec()) as box:
        await box.exec("true")
        begun = time.perf_counter()
        for _ in range(COMMANDS):
            await box.exec("true")
        return (time.perf_counter() - begun) / COMMANDS


def own_mebibytes() -> float:
    """Private memory of all processes that belong to sandboxes."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"slime_agl.sandbox.inside.keeper" not in (folder / "cmdline").read_bytes():
                continue
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return total / 1024


async def memory_each(backend: Backend, count: int) -> float:
    before = own_mebibytes()
    boxes = [backend.sandbox(SandboxSpec()) for _ in range(count)]
    await asyncio.gather(*(box.__aenter__() for box in boxes))
    held = own_mebibytes() - before
    await asyncio.gather(*(box.__aexit__(None, None, None) for box in boxes))
    return held / count


async def measure(names: list[str], rounds: int, at_once: tuple[int, ...]) -> dict[str, Found]:
    taken: dict[str, dict[int, list[float]]] = {name: {count: [] for count in at_once} for name in (BARE, *names)}
    commands: dict[str, list[float]] = {name: [] for name in taken}
    with tempfile.TemporaryDirectory() as folder:
        backends = {name: open_backend(SandboxConfig(backend=name, dir=folder, start_seconds=600)) for name in names}
        runs: dict[str, Callable[[], Awaitable[None]]] = {BARE: bare}
        runs |= {name: lambda backend=backend: sandboxed(backend) for name, backend in backends.items()}
        for _ in range(rounds):
            for name, one in runs.items():
                for count in at_once:
                    taken[name][count].append(await seconds_of(one, count))
                if name == BARE:
                    commands[name].append(await seconds_of(bare, 1))
                else:
                    commands[name].append(await command_seconds(backends[name]))
        memory = {name: await memory_each(backend, max(at_once)) for name, backend in backends.items()}
        for backend in backends.values():
            await backend.close()
    return {
        name: Found(
            {count: statistics.median(found) for count, found in by_count.items()},
            statistics.median(commands[name]),
            memory.get(name, 0.0),
        )
        for name, by_count in taken.items()
    }


def table(figures: dict[str, Found]) -> str:
    """Milliseconds, and in brackets how many times as long as a bare subprocess."""
    counts = list(figures[BARE].seconds)
    head = ["", *(f"{count} at once, ms" for count in counts), "growth", "command, ms", "memory, MiB"]
    rows = [head]
    for name, found in figures.items():
        row = [name]
        for count in counts:
            ratio = found.seconds[count] / figures[BARE].seconds[count]
            row.append(f"{1000 * found.seconds[count]:.0f}" + (f" ({ratio:.1f}x)" if name != BARE else ""))
        growth = found.seconds[counts[-1]] / counts[-1] / found.seconds[counts[0]]
        command = f"{1000 * found.command:.1f} ({found.command / figures[BARE].command:.2f}x)"
        row += [f"{growth:.2f}", command if name != BARE else f"{1000 * found.command:.1f}", f"{found.memory:.1f}"]
        rows.append(row)
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def usable() -> list[str]:
    names = []
    for name, kind in KEPT.items():
        try:
            kind.check()
            names.append(name)
        except SandboxError as error:
            print(f"{name} is left out: {error}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench/sandboxes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(table(asyncio.run(measure(usable(), options.rounds, AT_ONCE))))


if __name__ == "__main__":
    main()
