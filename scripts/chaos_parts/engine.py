"""The engine: a separate process that samples, records what it sampled before it answers, and lies on request.

The record is a file with one JSON line per answer: who asked (a mark in the prompt names fault, attempt and row), the
prompt ids, the sampled ids, and whether the answer sent was a lie. It outlives every process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_parts.wire import Asked, Connection, Gone, Op, json_message

MARK = re.compile(r"\[\[([^|\]]*)\|([^|\]]*)\|([^|\]]*)\|([^|\]]*)\]\]")
CONTEXT = 65_536
WORDS = ("alpha", "the", "hello", "and", "inner", "respect", "gold", "thing", "ring", "42", "é", "x")
OPENER = "<|im_start|>assistant"


@dataclass(frozen=True, slots=True)
class Truth:
    """What was sampled for one request. mark: fault, rollout, attempt, row. turn: answers already in the prompt."""

    serial: int
    rid: str
    mark: tuple[str, ...]
    turn: int
    shown: list[int]
    output: list[int]
    logprobs: list[float]
    finish: dict[str, Any]
    version: str
    most: int | None

    def wire(self) -> dict[str, Any]:
        """The honest answer in SGLang's format."""
        entries = [[value, token, None] for value, token in zip(self.logprobs, self.output, strict=True)]
        meta = {
            "id": self.rid,
            "finish_reason": self.finish,
            "prompt_tokens": len(self.shown),
            "completion_tokens": len(self.output),
            "cached_tokens": 0,
            "weight_version": self.version,
            "output_token_logprobs": entries,
            "e2e_latency": 0.01,
        }
        return {"text": "", "output_ids": self.output, "meta_info": meta}

    def cut(self, count: int) -> Truth:
        """Return the partial answer of an aborted request."""
        values = {name: getattr(self, name) for name in self.__slots__}
        partial = {"output": self.output[:count], "logprobs": self.logprobs[:count], "finish": {"type": "abort"}}
        return Truth(**{**values, **partial})


@dataclass(slots=True)
class Plan:
    """Engine behaviour. faults: names that marks may request. latency: maximum seconds per answer."""

    record: Path
    seed: int = 0
    latency: float = 0.02
    port: int = 0


@dataclass(eq=False)
class Engine:
    plan: Plan
    tokenizer: Any
    faults: Any
    version: int = 1
    paused: bool = False
    ambushes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(f"engine {self.plan.seed}")
        self._record = os.open(self.plan.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._letters = {char: self.tokenizer.encode(char) for char in map(chr, range(32, 127))}
        self._stop = self.tokenizer.eos_token_id
        self._serial = int(self.plan.record.stat().st_size)
        self._hits: Counter[tuple[str, ...]] = Counter()
        self._running: dict[str, asyncio.Event] = {}
        self._go = asyncio.Event()
        self._go.set()
        self.earlier: list[Truth] = []

    async def serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(self.answer, self._ambushed), sock=listener)
        await server.serve_forever()

    def _ambushed(self, phase: str) -> bool:
        hit = self.ambushes[phase] > 0
        self.ambushes[phase] -= hit
        return hit

    async def answer(self, connection: Connection, asked: Asked) -> Iterable[Op]:
        if asked.path == "/generate":
            return await self._generate(connection, json.loads(asked.body))
        return [json_message(self._control(asked))]

    def _control(self, asked: Asked) -> Any:
        body = json.loads(asked.body) if asked.body.startswith(b"{") else {}
        if asked.path == "/abort_request":
            for rid, event in self._running.items():
                if body.get("abort_all") or rid.startswith(str(body.get("rid"))):
                    event.set()
        elif asked.path == "/pause_generation":
            self._go.clear()
            for event in self._running.values():
                event.set()
        elif asked.path == "/continue_generation":
            self.version += asked.body.startswith(b"{") and bool(body.get("new_weights"))
            self._go.set()
        count = len(self._running)
        loads = [{"dp_rank": 0, "num_running_reqs": count, "num_waiting_reqs": 0, "num_total_reqs": count}]
        return {
            "model_path": "chaos",
            "weight_version": str(self.version),
            "is_generation": True,
            "status": "ok",
            "context_length": CONTEXT,
            "loads": loads,
            "served": self._serial,
        }

    async def _generate(self, connection: Connection, body: dict[str, Any]) -> Iterable[Op]:
        rid = body["rid"]
        aborted = self._running[rid] = asyncio.Event()
        try:
            await self._go.wait()
            truth = self._sample(body)
            kind = self._fault(truth)
            if kind is not None:
                truth = kind.shape(truth)
                self._write(truth, kind.name, kind.lie)
                for op in kind.make(truth, self):
                    await connection.play(op)
                return []
            waits = [asyncio.ensure_future(event.wait()) for event in (aborted, connection.gone)]
            done, left = await asyncio.wait(
                waits, timeout=self._random.uniform(0, self.plan.latency), return_when=asyncio.FIRST_COMPLETED
            )
            for wait in left:
                wait.cancel()
            if connection.gone.is_set():
                raise Gone
            if done:
                truth = truth.cut(self._random.randrange(len(truth.output)))
            self._write(truth, "", False)
            return [json_message(truth.wire())]
        finally:
            self._running.pop(rid, None)

    def _fault(self, truth: Truth) -> Any:
        kind = self.faults.get(truth.mark[0])
        if kind is None or truth.turn != kind.turn:
            return None
        self._hits[truth.mark[:3]] += 1
        return kind if self._hits[truth.mark[:3]] <= kind.times else None

    def _sample(self, body: dict[str, Any]) -> Truth:
        shown = body["input_ids"]
        text = self.tokenizer.decode(shown)
        mark = next(iter(MARK.findall(text)), ("", "", "", ""))
        self._serial += 1
        said = f"{os.getpid()}.{self._serial} " + " ".join(self._random.choices(WORDS, k=self._random.randrange(2, 6)))
        if "[tool]" in text and "<tool_response>" not in text.rpartition("[tool]")[2]:
            said = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {self._serial}, "b": 1}}}}\n</tool_call>'
        # Every other answer is spelled letter by letter, as no encoder would.
        canonical = self._random.random() < 0.5 or "<" in said or "é" in said
        output = self.tokenizer.encode(said) if canonical else [t for char in said for t in self._letters[char]]
        output.append(self._stop)
        most = body["sampling_params"].get("max_new_tokens")
        finish: dict[str, Any] = {"type": "stop", "matched": self._stop}
        if most is not None and len(output) > most:
            output, finish = output[:most], {"type": "length", "length": most}
        logprobs = [-3 * self._random.random() for _ in output]
        return Truth(
            self._serial,
            body["rid"],
            mark,
            max(0, text.count(OPENER) - 1),
            shown,
            output,
            logprobs,
            finish,
            str(self.version),
            most,
        )

    def _write(self, truth: Truth, fault: str, lie: bool) -> None:
        self.earlier.append(truth)
        line = {
            "mark": truth.mark,
            "turn": truth.turn,
            "shown": truth.shown,
            "output": truth.output,
            "logprobs": truth.logprobs,
            "fault": fault,
            "lie": lie,
            "rid": truth.rid,
        }
        os.write(self._record, json.dumps(line).encode() + b"\n")


class EngineProcess:
    """An engine in a fork of this process, which must be single-threaded. `kill` ends it with SIGKILL."""

    def __init__(self, plan: Plan, tokenizer: Any, faults: Any = None) -> None:
        self._plan, self._tokenizer, self._faults = plan, tokenizer, faults or {}
        self.pid = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._plan.port}"

    def start(self) -> EngineProcess:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._plan.port))
        listener.listen(2048)
        self._plan.port = listener.getsockname()[1]
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                end_with(parent)
                asyncio.run(self._main(listener))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        listener.close()
        return self

    async def _main(self, listener: socket.socket) -> None:
        await Engine(self._plan, self._tokenizer, self._faults).serve(listener)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            os.waitpid(self.pid, 0)
            self.pid = 0

    def stop(self) -> None:
        if self.pid:
            self.kill()

    def __enter__(self) -> EngineProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
