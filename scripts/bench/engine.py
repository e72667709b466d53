"""An instant engine: canned `/generate` answers as bytes, in a separate process.

It also answers chat completions, for agents without a gateway.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path

import uvloop

from bench.framing import Framing
from bench.pinned import pin

MODEL_INFO = b'{"model_path": "bench", "weight_version": "1"}'
IDLE = b'{"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}'


def canned(ids: list[int]) -> tuple[bytes, bytes, bytes]:
    """Split an answer's body: before its id, from there to the number of prompt tokens, and the rest."""
    logprobs = [[-0.1 - (at % 7) / 8, token, None] for at, token in enumerate(ids)]
    meta = {
        "id": "-2",
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "weight_version": "1",
        "e2e_latency": 0.001,
        "output_token_logprobs": logprobs,
        "prompt_tokens": -1,
    }
    before, rest = json.dumps({"text": "", "output_ids": ids, "meta_info": meta}).split("-2")
    between, after = rest.split("-1}")
    return before.encode(), between.encode(), b"}" + after.encode()


def request_id(request: bytearray) -> bytes:
    """Return a request's rid, which its answer repeats; '0' if absent."""
    at = request.rfind(b'"rid"')
    start = request.find(b'"', at + 5) + 1 if at >= 0 else 0
    return bytes(request[start : request.find(b'"', start)]) if start else b"0"


def canned_chat(number: int) -> bytes:
    """The chat completion that the gateway makes of an answer of `bench.material`."""
    arguments = json.dumps({"path": f"src/part_{number}/module.py", "lines": f"{number * 40}-{number * 40 + 39}"})
    call = {"id": "c00000000", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    usage = {"prompt_tokens": 1000, "completion_tokens": 40, "total_tokens": 1040}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
    head = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "policy"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


class EngineProtocol(Framing):
    """The engine's side of a connection."""

    def __init__(self, answers: itertools.cycle, chats: itertools.cycle) -> None:
        super().__init__()
        self._answers, self._chats = answers, chats

    def received(self, request: bytearray) -> None:
        if request.startswith(b"POST /generate"):
            start = request.find(b"input_ids")
            shown = request.count(b",", start, request.find(b"]", start)) + 1 if start >= 0 else 0
            before, between, after = next(self._answers)
            self._send(b"200 OK", b"%b%b%b%d%b" % (before, request_id(request), between, shown, after))
        elif request.startswith(b"POST /v1/chat/completions"):
            self._send(b"200 OK", next(self._chats))
        elif request.startswith(b"GET /get_model_info"):
            self._send(b"200 OK", MODEL_INFO)
        elif request.startswith(b"GET /v1/loads"):
            self._send(b"200 OK", IDLE)
        else:
            self._send(b"200 OK" if request.startswith(b"GET /health") else b"404 Not Found", b"{}")

    def _send(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


async def serve(answers: list[list[int]]) -> None:
    cycle = itertools.cycle([canned(ids) for ids in answers])
    chats = itertools.cycle([canned_chat(number) for number in range(len(answers))])
    server = await asyncio.get_running_loop().create_server(
        lambda: EngineProtocol(cycle, chats), "127.0.0.1", 0, backlog=2048
    )
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    pin(last=True)
    uvloop.run(serve(json.loads(Path(sys.argv[1]).read_text())["answers"]))
