"""The real SGLang router, as a child process in front of local engines."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from slime_agl.errors import ConfigError, EngineUnavailable

_READY_SECONDS = 30.0
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LOG_TAIL = 2_000

# Runs the router and exits with it; kills it when this process dies, which closes the supervisor's stdin.
# A thread inside the router's own process could not do that, because the router keeps the interpreter's lock.
_SUPERVISOR = """
import os, signal, subprocess, sys, threading

signal.signal(signal.SIGTERM, lambda *_: None)
command = [sys.executable, "-m", "sglang_router.launch_router", *sys.argv[1:]]
router = subprocess.Popen(command, stdin=subprocess.DEVNULL)

def end_with_parent():
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=end_with_parent, daemon=True).start()
sys.exit(router.wait())
"""


class RouterProcess:
    """A running router. A context manager; `stop` is idempotent.

    url: its address. log: file with its output. pid: leader of its process group.
    """

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self._process = process
        self.url = url
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def workers(self) -> list[dict]:
        """Return the entries of `GET /workers`. Raises EngineUnavailable if the router does not answer."""
        try:
            return _get_json(f"{self.url}/workers")["workers"]
        except OSError as error:
            raise EngineUnavailable(f"the router at {self.url} does not answer: {error}. {self._tail()}") from error

    def stop(self) -> None:
        """End the router's process group: SIGTERM first, then SIGKILL."""
        for kind, seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, None)):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, kind)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> RouterProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_ready(self, workers: int) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        healthy = 0
        while healthy < workers:
            if not self.running:
                raise EngineUnavailable(f"the router exited with code {self._process.returncode}. {self._tail()}")
            if time.monotonic() > deadline:
                raise EngineUnavailable(
                    f"the router at {self.url} has {healthy} of {workers} workers after {_READY_SECONDS:.0f} s; "
                    f"are the engines up? {self._tail()}"
                )
            time.sleep(_POLL_SECONDS)
            # OSError: not listening yet, or not ready yet.
            with contextlib.suppress(OSError):
                healthy = sum(worker["is_healthy"] for worker in _get_json(f"{self.url}/workers")["workers"])

    def _tail(self) -> str:
        text = self.log.read_text(errors="replace").strip()[-_LOG_TAIL:]
        return f"Its log ({self.log}) ends with:\n{text}" if text else f"Its log ({self.log}) is empty."


def start_router(
    worker_urls: Sequence[str],
    *,
    port: int = 0,
    policy: str = "round_robin",
    health_checks: bool = False,
    log: Path | None = None,
) -> RouterProcess:
    """Start a router on loopback; return once it lists every worker as healthy. It ends with this process.

    port: 0 takes a free one. policy: a name listed by `python -m sglang_router.launch_router --help`.
    health_checks: also enables the circuit breaker and retries; off as in slime, so that a dead worker stays listed.
    log: file for its output; None makes a temporary file.

    Raises:
        ConfigError: sglang-router is not installed.
        EngineUnavailable: it did not become ready; the message has the end of its log.
    """
    if importlib.util.find_spec("sglang_router") is None:
        raise ConfigError("sglang-router is not installed; install it with: pip install sglang-router")
    if log is None:
        handle, name = tempfile.mkstemp(prefix="slime_agl-router-", suffix=".log")
        os.close(handle)
        log = Path(name)
    port = port or free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--log-level", "warn"]
    options += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    if not health_checks:
        options += ["--disable-health-check", "--disable-circuit-breaker", "--disable-retries"]
    command = [sys.executable, "-c", _SUPERVISOR, "--worker-urls", *worker_urls, *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    router = RouterProcess(process, f"http://127.0.0.1:{port}", log)
    try:
        router._wait_ready(len(worker_urls))
    except BaseException:
        router.stop()
        raise
    return router


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _get_json(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=5) as response:
        return json.load(response)
