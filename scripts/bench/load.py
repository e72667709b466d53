"""Minimal agents: raw HTTP/1.1 over one connection each, in a separate process driven over stdin.

A command is a JSON object: {"url", "name", "sessions", "turns", "at_once", "length"}; `direct` posts a prompt of ids to
an engine instead. The answer is {"turns", "errors", "seconds", "p50"}; p50 is the median of seconds per turn.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.chat import Chat, Script, head
from bench.framing import Framing
from bench.pinned import pin


class Connection(Framing):
    """Posts one body at a time and returns the answer's status and body."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("closed before its answer"))

    def received(self, message: bytearray) -> None:
        self._answer.set_result((int(message[9:12]), bytes(message[message.find(b"\r\n\r\n") + 4 :])))

    def post(self, head: bytes, body: bytes) -> asyncio.Future[tuple[int, bytes]]:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        return self._answer

    def close(self) -> None:
        self._transport.close()


@dataclass(slots=True)
class Result:
    turns: int = 0
    errors: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class Load:
    """The agents of one command."""

    def __init__(self, material: dict[str, Any], command: dict[str, Any]) -> None:
        self._command = command
        self._script = Script(material, command["length"])
        self._result = Result()

    async def run(self) -> dict[str, Any]:
        waiting = iter(range(self._command["sessions"]))
        host, port = self._command["url"].removeprefix("http://").split(":")
        loop = asyncio.get_running_loop()
        connections = [
            (await loop.create_connection(Connection, host, int(port)))[1] for _ in range(self._command["at_once"])
        ]
        began = time.perf_counter()
        await asyncio.gather(*(self._worker(connection, waiting) for connection in connections))
        self._result.seconds = time.perf_counter() - began
        for connection in connections:
            connection.close()
        result = self._result
        p50 = statistics.median(result.latencies)
        return {"turns": result.turns, "errors": result.errors, "seconds": result.seconds, "p50": p50}

    async def _worker(self, connection: Connection, waiting: Any) -> None:
        for number in waiting:
            await (self._direct if self._command.get("direct") else self._session)(connection, number)

    async def _session(self, connection: Connection, number: int) -> None:
        path = f"/rollout/{self._command['name']}/attempt/{number}/v1/chat/completions"
        first, chat = head(path), Chat(self._script)
        for _ in range(self._command["turns"]):
            chat.take(await self._ask(connection, first, chat.body()))

    async def _direct(self, connection: Connection, number: int) -> None:
        ids = ",".join(map(str, range(100000, 100000 + 300 * self._command["turns"] // 2)))
        body = b'{"input_ids":[' + ids.encode() + b'],"sampling_params":{},"return_logprob":true}'
        for _ in range(self._command["turns"]):
            await self._ask(connection, head("/generate"), body)

    async def _ask(self, connection: Connection, first: bytes, body: bytes) -> bytes | None:
        """Return the answer's body, None for an error."""
        began = time.perf_counter()
        status, raw = await connection.post(first, body)
        self._result.latencies.append(time.perf_counter() - began)
        self._result.turns += 1
        self._result.errors += status != 200
        return raw if status == 200 else None


def main(material: str) -> None:
    pin(last=True)
    read = json.loads(Path(material).read_text())
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        print(json.dumps(uvloop.run(Load(read, json.loads(line)).run())), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
