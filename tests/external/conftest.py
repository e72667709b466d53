"""Steps of slime over a store served here, with runners of other processes or played by hand."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from slime_agl.rollout import generate, shutdown
from slime_agl.testing.host import ListDataSource

RUNNER = Path(__file__).with_name("runner_process.py")


class Runners:
    """A process group of runners."""

    def __init__(self, agent: str, count: int, port: int, host: str = "127.0.0.1") -> None:
        traces = f"http://{host}:{port}/v1/traces"
        environment = {
            **os.environ,
            "AGL_SERVER_HOST": host,
            "AGL_SERVER_PORT": str(port),
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": traces,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(RUNNER), agent, str(count)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()


@pytest.fixture
def port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def runners(port: int) -> Iterator[Callable[..., Runners]]:
    """`runners(agent, count)` starts processes that take rollouts from the store at `port`."""
    with ExitStack() as stack:

        def start(agent: str, count: int = 1, **more: Any) -> Runners:
            started = Runners(agent, count, port, **more)
            stack.callback(started.end)
            return started

        yield start


@pytest.fixture
def step(fake_sglang: Any, rollout_args: Callable[..., Any], port: int) -> Iterator[Callable[..., Any]]:
    """`step(rows, agl=..., **overrides)` is slime's call for a step over a store served at `port`."""
    with ExitStack() as stack:
        stack.callback(shutdown)

        def run(
            rows: list[Any],
            number: int = 0,
            *,
            agl: dict[str, Any] | None = None,
            responder: Callable[..., str] | None = None,
            **overrides: Any,
        ) -> Any:
            section = {"store": {"serve": f"127.0.0.1:{port}"}, **(agl or {})}
            section["runners"] = {"mode": "external", "timeout_seconds": 60.0, **section.get("runners", {})}
            fake_sglang.answer_with(responder or (lambda request: f"so it is {len(request.input_ids)}"))
            args = rollout_args(**{"rollout_batch_size": len(rows), "agl": section, **overrides})
            run.source = ListDataSource(rows, args.n_samples_per_prompt)
            return generate(args, number, run.source)

        yield run


@pytest.fixture
def later(step: Callable[..., Any]) -> Iterator[Callable[..., Future[Any]]]:
    """`later(rows, ...)` is `step` on a thread of its own, as a future."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda *args, **more: pool.submit(step, *args, **more)
        shutdown()  # ends a step for which a test that failed no longer plays
