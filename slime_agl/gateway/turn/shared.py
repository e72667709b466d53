"""One object for what many attempts send alike: lists of tools, and system messages."""

from __future__ import annotations

from typing import Any, TypeVar

from slime_agl.chat.template.tools import Tools
from slime_agl.gateway.bodies import json_bytes
from slime_agl.lru import LRU

ENTRIES = 512
T = TypeVar("T")


class Shared:
    """The latest lists of tools and system messages, by what they say."""

    def __init__(self) -> None:
        self._latest: LRU[bytes, Any] = LRU(ENTRIES)

    def tools(self, tools: Tools | None) -> Tools | None:
        return None if tools is None else self._one(tools, tools.text)

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message itself, unless it is a system message that came before."""
        return self._one(message, json_bytes(message)) if message.get("role") == "system" else message

    def _one(self, value: T, key: bytes) -> T:
        known = self._latest.used(key)
        if known is None:
            known = self._latest[key] = value
        return known
