"""Runs pytest repeatedly, each time in a fork of a process that has loaded the big libraries.

Reads one JSON object per line from stdin, {tests, seconds}, and answers each with {status, output}; status is null on
a timeout. The package under test is imported in the fork only, from its current state on disk.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback

LIBRARIES = ("agentlightning", "anthropic", "openai", "transformers", "torch", "aiohttp", "orjson", "rich")
PAUSE_SECONDS = 0.05
# pytest insists on loading a plugin's modules itself; some of them are among the libraries.
REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps libraries' output out of the answers
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    loaded = [name for name in sys.modules if name.split(".")[0] in ("slime_agl", "tests")]
    assert not loaded, f"{loaded[0]} must not be loaded before a fault stands in it"
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile() as output:
            status = _run(asked["tests"], asked["seconds"], output.fileno())
            output.seek(0)
            said = output.read().decode("utf-8", "replace")
        answers.write(json.dumps({"status": status, "output": said}) + "\n")
        answers.flush()


def _run(tests: list[str], seconds: float, output: int) -> int | None:
    child = os.fork()
    if not child:
        _be_pytest(tests, output)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(PAUSE_SECONDS)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _be_pytest(tests: list[str], output: int) -> None:
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    import pytest

    status = 3
    try:
        status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-W", REWRITTEN, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
