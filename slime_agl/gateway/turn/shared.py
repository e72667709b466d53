"""One object for what many attempts send alike: lists of tools, and system messages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeVar

from slime_agl.chat.template.tools import Tools
from slime_agl.gateway.bodies import json_bytes

HELD = 512
T = TypeVar("T")


class Shared:
    """The latest lists of tools and system messages, by what they say."""

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, Any] = OrderedDict()

    def tools(self, tools: Tools | None) -> Tools | None:
        return None if tools is None else self._one(tools, tools.text)

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message itself, unless it is a system message that came before."""
        return self._one(message, json_bytes(message)) if message.get("role") == "system" else message

    def _one(self, value: T, key: bytes) -> T:
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = value
            if len(self._held) > HELD:
                self._held.popitem(last=False)
        else:
            self._held.move_to_end(key)
        return held
