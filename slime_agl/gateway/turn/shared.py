"""Share one object between attempts that send equal tool lists or system messages, to save memory."""

from __future__ import annotations

from typing import Any, TypeVar

from slime_agl.chat.template.tools import Tools
from slime_agl.gateway.bodies import json_bytes
from slime_agl.gateway.request import Message
from slime_agl.lru import LRU

ENTRIES = 512
T = TypeVar("T")


class Shared:
    """The tool lists and system messages used last, by content."""

    def __init__(self) -> None:
        self._latest: LRU[bytes, Any] = LRU(ENTRIES)

    def tools(self, tools: Tools | None) -> Tools | None:
        return None if tools is None else self._one(tools, tools.text)

    def message(self, message: Message) -> Message:
        """Return an equal earlier system message if there is one, else the message itself."""
        return self._one(message, json_bytes(message)) if message.get("role") == "system" else message

    def _one(self, value: T, key: bytes) -> T:
        known = self._latest.used(key)
        if known is None:
            known = self._latest[key] = value
        return known
