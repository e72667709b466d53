"""CPU seconds of a process by thread, and a sampling profile weighted by them.

Why not cProfile: it makes calls dear and leaves C code cheap, so what calls most looks worst. Samples are taken by a
thread, which sees another one wherever that one holds or has released the interpreter; each sample therefore counts
for the CPU time that its thread has used since the last one, so waiting counts nothing.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import slime_agl

PACKAGE = Path(slime_agl.__file__).parent
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
# Threads that last as long as what is measured, by what their names begin with; the clock of a dead one is undefined.
THREADS = {"MainThread": "main", "agl-runtime": "runtime", "agl-gateway": "gateway", "agl-encode": "gateway"}


def thread_seconds(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def cpu() -> Counter[str]:
    """CPU seconds so far: of `THREADS`, and of all that this process did as 'all'."""
    found: Counter[str] = Counter(all=time.process_time())
    for thread in threading.enumerate():
        name = next((name for start, name in THREADS.items() if thread.name.startswith(start)), None)
        if name is not None:
            found[name] += thread_seconds(thread)
    return found


class Profile:
    """Samples one thread while entered. through, within: CPU seconds by place, anywhere in the stack and innermost."""

    def __init__(self, thread: str, *, functions: bool = False, seconds: float = 0.001) -> None:
        self._thread = next(one for one in threading.enumerate() if one.name.startswith(thread))
        self._functions, self._seconds = functions, seconds
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="bench-profile", daemon=True)
        self.through: Counter[str] = Counter()
        self.within: Counter[str] = Counter()

    def __enter__(self) -> Profile:
        # The sampler must not wait for the thread to let go of the interpreter by itself, as it does at each system
        # call: those places would look dear.
        self._before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        self._sampler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._sampler.join()
        sys.setswitchinterval(self._before)

    def _sample(self) -> None:
        last = thread_seconds(self._thread)
        while not self._stop.wait(self._seconds):
            frame, now = sys._current_frames().get(self._thread.ident), thread_seconds(self._thread)
            spent, last = now - last, now
            places = []
            while frame is not None:
                code = frame.f_code
                place = _place(code.co_filename)
                places.append(f"{place} {code.co_qualname}" if self._functions else place)
                frame = frame.f_back
            if spent and places:
                self.within[places[0]] += spent
                self.through.update(dict.fromkeys(places, spent))

    def rows(self, count: int) -> list[Sequence[str]]:
        """The places with most CPU, in percent of the thread's."""
        whole = sum(self.within.values())
        head = ("CPU of the thread, %", "through", "within")
        rest = [
            (place, f"{100 * spent / whole:.1f}", f"{100 * self.within[place] / whole:.1f}")
            for place, spent in self.through.most_common(count)
        ]
        return [head, *rest]


def _place(file: str) -> str:
    """A file of this project; else the installed package, or the module of the standard library."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return str(path.relative_to(PACKAGE.parent))
    for folder in INSTALLED:
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0]
    parts = path.parts
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1]
    return "bench" if path.parent == Path(__file__).parent else f"python: {path.parent.name}/{path.name}"
