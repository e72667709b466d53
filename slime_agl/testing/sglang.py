"""A scripted SGLang server: it returns a test's answers and records its requests.

    >>> with FakeSGLang() as fake:
    ...     fake.call_tool("add", {"a": 1, "b": 2}).say("The sum is 3.")
    ...     run_my_agent(fake.url)
    ...     first, second = fake.requests
    ...     assert second.input_ids[len(first.input_ids):][:len(fake.answers[0].ids)] == fake.answers[0].ids

It listens on a free loopback port in its own thread, serves `/generate` and SGLang's control endpoints, and lists
itself under `/workers`, so it can replace a router or a worker behind one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from transformers import PreTrainedTokenizerBase

from slime_agl.local.engine.server import EngineThread
from slime_agl.testing.answers import Answer, Shaped
from slime_agl.testing.engine import ScriptEngine
from slime_agl.testing.record import Received, Sent
from slime_agl.testing.replay import FakeReplay
from slime_agl.testing.tokenizer import tiny_tokenizer, tool_call_text

Responder = Callable[[Received], "Answer | str | None"]
PATIENCE_SECONDS = 30.0


class FakeSGLang:
    """The script and the records. Thread-safe.

    tokenizer: encodes the script's text, default `tiny_tokenizer()`. weight_version: reported with each answer; can be
    set at any time. context_length: longer prompts are refused as by SGLang. default: the answer to requests without a
    script; if None, they get a 400 that names them, and are listed in `unanswered`. replay: source of routed experts
    and top-p sets for requests that ask for them; None, the default, returns none; can be set at any time.

    requests, answers: all `/generate` requests and answers, in order. control: (path, body) of all other calls that
    change state, and of the probes for replay data.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        weight_version: str = "1",
        context_length: int = 32768,
        default: Answer | str | None = None,
        replay: FakeReplay | None = None,
    ) -> None:
        self.tokenizer = tokenizer or tiny_tokenizer()
        self.weight_version = weight_version
        self.context_length = context_length
        self.replay = replay
        self.requests: list[Received] = []
        self.answers: list[Sent] = []
        self.unanswered: list[Received] = []
        self.control: list[tuple[str, Mapping]] = []
        self.partial = 0
        self._default = default
        self._responder: Responder | None = None
        self._script: deque[Answer] = deque()
        self._faults: deque[tuple[int, str]] = deque()
        self._engine = ScriptEngine(self)
        self._server: EngineThread | None = None
        self._url = ""

    # script

    def say(
        self,
        text: str | None = None,
        *,
        ids: list[int] | tuple[int, ...] | None = None,
        finish: str = "stop",
        matched: int | str | None = None,
        meta: Mapping[str, object] | None = None,
    ) -> FakeSGLang:
        """Script the next answer; see `Answer` for the arguments. Returns the fake, so calls chain."""
        self._script.append(Answer(text, ids=ids, finish=finish, matched=matched, meta=meta or {}))
        return self

    def call_tool(self, name: str, arguments: Mapping[str, object], *, text: str = "") -> FakeSGLang:
        """Script an answer with `text` and one tool call."""
        return self.call_tools((name, arguments), text=text)

    def call_tools(self, *calls: tuple[str, Mapping[str, object]], text: str = "") -> FakeSGLang:
        """Script an answer with `text` and several tool calls.

        >>> fake.call_tools(("add", {"a": 1}), ("add", {"a": 2}))
        """
        parts = ([text] if text else []) + [tool_call_text(name, arguments) for name, arguments in calls]
        return self.say("\n".join(parts))

    def answer_with(self, responder: Responder) -> FakeSGLang:
        """Let a function answer requests beyond the script. It returns an Answer, a text, or None to decline.

        >>> fake.answer_with(lambda request: "yes" if "2 + 2" in request.text else "no")
        """
        self._responder = responder
        return self

    # faults and time

    def hold(self) -> FakeSGLang:
        """Keep requests pending from now on, until `release`."""
        self._engine.hold()
        return self

    def release(self, count: int | None = None) -> None:
        """Answer the `count` oldest pending requests; without `count`, answer all and end `hold`."""
        self._engine.release(count)

    def fail_next(self, status: int, message: str = "scripted failure", *, times: int = 1) -> FakeSGLang:
        """Answer the next requests with an HTTP error; status 0 cuts the connection without an answer."""
        self._faults.extend([(status, message)] * times)
        return self

    def abort_partial(self, count: int) -> FakeSGLang:
        """From now on, return the first `count` tokens of an aborted request's answer (default 0).

        A request for the prompt plus the partial answer gets the rest, so a resumed turn becomes complete.
        """
        self.partial = count
        return self

    def wait_for_requests(self, count: int) -> None:
        """Block until `count` requests have arrived since the start.

        Raises:
            TimeoutError: after half a minute.
        """
        changed = self._engine.changed
        with changed:
            if not changed.wait_for(lambda: len(self.requests) >= count, PATIENCE_SECONDS):
                raise TimeoutError(f"{len(self.requests)} of {count} requests arrived within {PATIENCE_SECONDS:g} s")

    async def requests_arrived(self, count: int) -> None:
        """`wait_for_requests` for coroutines."""
        await asyncio.to_thread(self.wait_for_requests, count)

    def wait_until_idle(self) -> None:
        """Block until no request is pending.

        Raises:
            TimeoutError: after half a minute.
        """
        changed = self._engine.changed
        with changed:
            if not changed.wait_for(lambda: not self.in_flight, PATIENCE_SECONDS):
                raise TimeoutError(f"{self.in_flight} requests are still pending after {PATIENCE_SECONDS:g} s")

    # lifecycle

    @property
    def url(self) -> str:
        if not self._url:
            raise RuntimeError("the fake server is not started; use `with FakeSGLang() as fake:` or call start()")
        return self._url

    @property
    def in_flight(self) -> int:
        """Number of requests that have arrived and are not answered."""
        return self._engine.in_flight

    def start(self) -> FakeSGLang:
        self._server = EngineThread(
            self._engine,
            port=urlsplit(self._url).port or 0,
            name="fake",
            pages={"/workers": self._workers},
            on_control=lambda path, body: self.control.append((path, body)),
            shutdown_seconds=0.1,
        )
        self._url = self._server.start().url
        return self

    def stop(self) -> None:
        """Close the server; pending requests lose their connection. Idempotent.

        `start` restarts it at the same address with the same script.
        """
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def __enter__(self) -> FakeSGLang:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # called by the backend, on the server's thread

    def next_fault(self) -> tuple[int, str] | None:
        return self._faults.popleft() if self._faults else None

    def next_answer(self, request: Received) -> Answer | None:
        """Return the script's next answer, else the responder's, else the default, else None."""
        if self._script:
            return self._script.popleft()
        said = self._responder(request) if self._responder else None
        said = self._default if said is None else said
        if said is None:
            self.unanswered.append(request)
        return Answer(said) if isinstance(said, str) else said

    def sent(self, request: Received, shaped: Shaped) -> None:
        self.answers.append(
            Sent(
                request=request, ids=shaped.ids, logprobs=shaped.logprobs, finish=shaped.finish, matched=shaped.matched
            )
        )

    def _workers(self) -> dict[str, object]:
        worker = {"id": "fake", "url": self._url, "worker_type": "regular", "is_healthy": True, "load": self.in_flight}
        return {"workers": [worker], "total": 1}
