"""Hand-made conversations: requests written from prepared bytes, so that agents cost next to nothing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import orjson

ECHO = {"role": "assistant", "content": "Let me look."}
# No subject sees the same message twice.
NUMBERS = itertools.count()


class Script:
    """Messages of benchmark agents. length: tokens per new message, one of the lengths in the material."""

    def __init__(self, material: Mapping[str, Any], length: int) -> None:
        self._texts = itertools.cycle(material["texts"][str(length)])
        self.tail = b'],"model":"policy","tools":' + orjson.dumps(material["tools"]) + b"}"
        self.system = orjson.dumps(material["system"])

    def text(self) -> str:
        return f"{next(NUMBERS)} {next(self._texts)}"


class Chat:
    """One conversation with tools."""

    def __init__(self, script: Script) -> None:
        self._script, self._messages = script, script.system
        self._asks: list[str] = []

    def body(self) -> bytes:
        """The body of the next request: all messages so far, and new ones that answer the last calls."""
        self._messages += b"," + b",".join(map(orjson.dumps, self._new()))
        return b'{"messages":[' + self._messages + self._script.tail

    def take(self, raw: bytes | None) -> None:
        """Take an answer's body; None stands for an error, and a body without choices for any answer."""
        choices = None if raw is None else orjson.loads(raw).get("choices")
        message = choices[0]["message"] if choices else ECHO
        self._asks = [call["id"] for call in message.get("tool_calls", ())]
        self._messages += b"," + orjson.dumps(message)

    def _new(self) -> list[dict[str, Any]]:
        text = self._script.text()
        if not self._asks:
            return [{"role": "user", "content": text}]
        return [{"role": "tool", "tool_call_id": call, "content": text} for call in self._asks]


def head(path: str, key: str = "dummy") -> bytes:
    """Request line and headers of a post, up to Content-Length."""
    headers = f"Host: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    return f"POST {path} HTTP/1.1\r\n{headers}".encode()
