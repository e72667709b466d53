"""The cheapest agents there are: raw HTTP/1.1 over one connection each, async and blocking.

A task's prompt begins with the number of turns. The texts come from the material that the environment variable
BENCH_MATERIAL names.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.chat import Chat, Script, head
from bench.load import Connection
from slime_agl.lightning import _agl  # noqa: F401  # ahead of agentlightning, which it keeps off the network

import agentlightning as agl  # isort: skip

SCRIPT = Script(json.loads(Path(os.environ["BENCH_MATERIAL"]).read_text()), 200)


async def converse(base: str, key: str, turns: int) -> None:
    """Talk to the endpoint at `base` for a number of turns."""
    url = urlsplit(base)
    loop, first, chat = asyncio.get_running_loop(), head(f"{url.path}/chat/completions", key), Chat(SCRIPT)
    _, connection = await loop.create_connection(Connection, url.hostname, url.port)
    for _ in range(turns):
        status, raw = await connection.post(first, chat.body())
        assert status == 200, raw
        chat.take(raw)
    connection.close()


def converse_blocking(base: str, key: str, turns: int) -> None:
    """`converse` on a thread that waits."""
    url = urlsplit(base)
    first, chat = head(f"{url.path}/chat/completions", key), Chat(SCRIPT)
    with socket.create_connection((url.hostname, url.port)) as connection:
        for _ in range(turns):
            body = chat.body()
            connection.sendall(b"%sContent-Length: %d\r\n\r\n%s" % (first, len(body), body))
            chat.take(_received(connection))


def _received(connection: socket.socket) -> bytes:
    """Read an answer with a Content-Length; return its body."""
    data = connection.recv(1 << 16)
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += connection.recv(1 << 16)
    first = data[:end].lower()
    assert first.startswith(b"http/1.1 200"), data
    at = first.find(b"content-length:") + 15
    size = end + 4 + int(first[at:].split(b"\r\n", 1)[0])
    while len(data) < size:
        data += connection.recv(1 << 16)
    return data[end + 4 :]


def _turns(task: dict[str, Any]) -> int:
    return int(task["prompt"].split()[0])


@agl.rollout
async def waiting(task: dict[str, Any], llm: agl.LLM) -> float:
    await converse(llm.endpoint, llm.api_key or "dummy", _turns(task))
    return 1.0


@agl.rollout
def blocking(task: dict[str, Any], llm: agl.LLM) -> float:
    converse_blocking(llm.endpoint, llm.api_key or "dummy", _turns(task))
    return 1.0
