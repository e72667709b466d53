"""Count the package's files that a turn and a step run through, with a profile hook.

A turn is counted on the gateway's threads, from a request's arrival to its answer: the second of a conversation, in a
second execution, when everything is warm. A step is one call of `generate` on all threads.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import slime_agl

PACKAGE = Path(slime_agl.__file__).parent
GATEWAY_THREADS = ("agl-gateway", "agl-encode")
ASIDE = ("testing/",)


class Recorder:
    """While open, counts calls per file of the package, on threads whose names start with one of `threads`."""

    def __init__(self) -> None:
        self.threads: tuple[str, ...] | None = None
        self.calls: dict[str, int] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self.threads is None:
            return
        name = frame.f_code.co_filename
        if name.startswith(str(PACKAGE)) and threading.current_thread().name.startswith(self.threads):
            file = str(Path(name).relative_to(PACKAGE))
            self.calls[file] = self.calls.get(file, 0) + 1

    @contextmanager
    def open(self, *threads: str) -> Iterator[dict[str, int]]:
        self.calls, self.threads = {}, threads or ("",)
        try:
            yield self.calls
        finally:
            self.threads = None


def post(base: str, key: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Post one chat completion from a client that runs no code on the gateway's threads."""
    url = urlsplit(base)
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 0)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(
        "POST", f"{url.path}/chat/completions", json.dumps({"model": "policy", "messages": messages}), headers
    )
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["choices"][0]["message"]


def count(turns: int) -> tuple[dict[str, int], dict[str, int]]:
    """Count calls per file of one warm turn and of one warm step."""
    import agentlightning as agl

    from slime_agl.rollout import generate, shutdown
    from slime_agl.testing.host import ListDataSource, make_args
    from slime_agl.testing.paths import importable
    from slime_agl.testing.sglang import FakeSGLang
    from slime_agl.testing.tokenizer import save_tiny_checkpoint

    recorder, turn = Recorder(), dict[str, int]()
    measured: Callable[[], bool] = iter([False, True]).__next__

    @agl.rollout
    def agent(task: Any, llm: Any) -> float:
        messages: list[dict[str, Any]] = []
        watch = measured()
        for number in range(turns):
            messages.append({"role": "user", "content": f"question {number}"})
            if watch and number == 1:
                with recorder.open(*GATEWAY_THREADS) as calls:
                    messages.append(post(llm.endpoint, llm.api_key, messages))
                turn.update(calls)
            else:
                messages.append(post(llm.endpoint, llm.api_key, messages))
        return 1.0

    def stepped(args: Any, number: int) -> None:
        generate(args, number, ListDataSource(["row"], 1))

    threading.setprofile(recorder)
    sys.setprofile(recorder)
    with tempfile.TemporaryDirectory() as folder, FakeSGLang(default="answer") as fake, importable(agent) as path:
        checkpoint = save_tiny_checkpoint(Path(folder))
        args = make_args(fake, checkpoint, agl={"agent": path}, rollout_batch_size=1, n_samples_per_prompt=1)
        try:
            stepped(args, 0)
            stepped(args, 1)
            measured = lambda: False  # noqa: E731
            with recorder.open() as step:
                stepped(args, 2)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            shutdown()
    return turn, step


def show(what: str, calls: dict[str, int]) -> None:
    files = {file: number for file, number in calls.items() if not file.startswith(ASIDE)}
    print(f"{what}: {len(files)} files, {sum(files.values())} calls")
    for file, number in sorted(files.items()):
        print(f"  {number:5}  {file}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/road", description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="turns of an execution, at least 2")
    turn, step = count(parser.parse_args().turns)
    show("a warm turn", turn)
    show("a warm step", step)


if __name__ == "__main__":
    main()
