"""Trials, each in a fork with a deadline: a hang, exit or crash there is a finding and does not end this process."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chaos_parts.outcome import Outcome

PIDS = "pids"  # a file in a trial's folder: pid and start of every process that an agent started
GRACE_SECONDS = 2.0
ALONE_SECONDS = 30.0
NOT_RUN = "was not run"
Run = Callable[["Trial", Path], Outcome]


@dataclass(frozen=True, slots=True)
class Trial:
    """kinds: the faults it injects. run: returns its findings, in a separate process. seconds: its deadline."""

    part: str
    kinds: tuple[str, ...]
    run: Run
    seconds: float
    seed: int = 0
    mode: str = "sync"
    note: str = ""

    @property
    def who(self) -> str:
        names = f"{self.kinds[0]} and {len(self.kinds) - 1} more" if len(self.kinds) > 1 else "".join(self.kinds)
        how = ", ".join(filter(None, [self.mode if self.mode != "sync" else "", self.note]))
        return f"{self.part}: {names}" + (f" [{how}]" if how else "")

    def alone(self) -> list[Trial]:
        """Make the same trial for each of its kinds alone, to find the culprit."""
        return (
            [replace(self, kinds=(kind,), seconds=min(self.seconds, ALONE_SECONDS)) for kind in self.kinds]
            if len(self.kinds) > 1
            else []
        )


@dataclass(slots=True)
class _Child:
    trial: Trial
    pid: int
    watch: int
    folder: Path
    began: float
    asked: float = 0.0


@dataclass(slots=True)
class _Bunch:
    """A trial of several kinds that broke a promise, while each kind runs alone."""

    trial: Trial
    found: Outcome
    left: int
    alone: Outcome = field(default_factory=Outcome)


def conduct(trials: Sequence[Trial], root: Path, *, jobs: int, seconds: float) -> Iterator[tuple[Trial, Outcome]]:
    """Run trials, `jobs` at a time, and yield each with its findings.

    A trial of several kinds that breaks a promise runs again for each kind alone, and what these found counts for it;
    when none of them breaks one alone, the finding stays with all of them. After `seconds` nothing more is started.
    """
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: a trial's orphans become our children
    waiting: deque[tuple[Trial, _Bunch | None]] = deque((trial, None) for trial in trials)
    running: list[tuple[_Child, _Bunch | None]] = []
    end, number = time.monotonic() + seconds, 0
    while waiting or running:
        finished: list[tuple[Trial, Outcome, _Bunch | None]] = []
        while waiting and len(running) < jobs:
            trial, bunch = waiting.popleft()
            if time.monotonic() > end:
                late = Outcome()
                late.breaks(trial.who, f"{NOT_RUN}: {seconds:.0f} s were over")
                finished.append((trial, late, bunch))
                continue
            number += 1
            running.append((_start(trial, root / f"{number:04d}"), bunch))
        for child, bunch in _ended(running):
            running.remove((child, bunch))
            finished.append((child.trial, _collect(child), bunch))
        for trial, found, bunch in finished:
            if bunch is not None:
                bunch.alone.add(found)
                bunch.left -= 1
                if not bunch.left:
                    yield bunch.trial, _verdict(bunch.found, bunch.alone)
            elif found.broken and (alone := trial.alone()):
                bunch = _Bunch(trial, found, len(alone))
                waiting.extend((one, bunch) for one in alone)
            else:
                yield trial, found


def _verdict(whole: Outcome, alone: Outcome) -> Outcome:
    found = [pair for pair in alone.broken if NOT_RUN not in pair[1]]
    broken = found or list(whole.broken)
    whole.add(alone)
    whole.broken = broken
    return whole


def _start(trial: Trial, folder: Path) -> _Child:
    folder.mkdir()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            _inside(trial, folder)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # An agent may have closed them; this process must never continue as its parent.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(status)
    return _Child(trial, pid, os.pidfd_open(pid), folder, time.monotonic())


def _inside(trial: Trial, folder: Path) -> None:
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    stacks = open(folder / "stacks", "w")  # faulthandler writes to it at the end
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    os.environ["SLIME_AGL_CHAOS"] = str(folder)
    began = time.monotonic()
    found = trial.run(trial, folder)
    found.seconds = time.monotonic() - began
    found.save(folder / "outcome.json")


def _ended(running: Sequence[tuple[_Child, _Bunch | None]]) -> list[tuple[_Child, _Bunch | None]]:
    """Wait until a child ends or times out; one that times out gets a moment to dump its stacks."""
    if not running:
        return []
    now = time.monotonic()
    left = [
        (child.asked + GRACE_SECONDS if child.asked else child.began + child.trial.seconds) - now
        for child, _ in running
    ]
    ready = set(select.select([child.watch for child, _ in running], [], [], max(0.0, min(left)))[0])
    for child, _ in running:
        if child.watch in ready:
            continue
        if not child.asked and time.monotonic() >= child.began + child.trial.seconds:
            child.asked = time.monotonic()
            os.kill(child.pid, signal.SIGUSR1)
        elif child.asked and time.monotonic() >= child.asked + GRACE_SECONDS:
            os.killpg(child.pid, signal.SIGKILL)
    return [(child, parent) for child, parent in running if child.watch in ready]


def _collect(child: _Child) -> Outcome:
    _, status = os.waitpid(child.pid, 0)
    os.close(child.watch)
    path = child.folder / "outcome.json"
    found = Outcome.load(path) if path.exists() else Outcome(seconds=time.monotonic() - child.began)
    if child.asked and not path.exists():
        found.breaks(child.trial.who, f"nothing came of it in {child.trial.seconds:.0f} s; {_stack(child.folder)}")
    elif not path.exists():
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"
        found.breaks(child.trial.who, f"the driver's process ended with {how}: {_tail(child.folder / 'log')}")
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for pid in alive(child.folder / PIDS):
        found.left["children"] += 1
        found.breaks(child.trial.who, f"process {pid} that an agent started outlives the driver")
        os.kill(pid, signal.SIGKILL)
    return found


def note_process(folder: Path, pid: int) -> None:
    """Record a process that an agent started."""
    with (folder / PIDS).open("a") as file:
        file.write(f"{pid} {_started(pid)}\n")


def alive(path: Path) -> list[int]:
    """Return the listed processes that still run."""
    pairs = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(pid) for pid, started in pairs if started and _started(int(pid)) == started]


def _started(pid: int) -> str:
    """Return a process's start in ticks since boot, which with its pid identifies it; '' if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _stack(folder: Path) -> str:
    """Return where the slowest threads were."""
    lines = (folder / "stacks").read_text("utf-8", "replace").splitlines() if (folder / "stacks").exists() else []
    frames = [line.strip() for line in lines if "slime_agl" in line or "chaos_parts" in line]
    return "stood at: " + ("; ".join(frames[:4]) or "no stack was written")


def _tail(path: Path) -> str:
    text = path.read_text("utf-8", "replace").strip() if path.exists() else ""
    return " / ".join(text.splitlines()[-3:])[-600:] or "nothing in its log"
