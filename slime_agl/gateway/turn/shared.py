"""One object for what many attempts send alike: lists of tools, and system messages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from slime_agl.gateway.bodies import json_bytes

HELD = 512


class Shared:
    """The latest lists of tools and system messages, by what they say.

    Equal lists of tools come back as one object, so that they are told apart by identity.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, Any] = OrderedDict()

    def tools(self, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        return None if tools is None else self._one(tools)

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message itself, unless it is a system message that came before."""
        return self._one(message) if message.get("role") == "system" else message

    def _one(self, value: Any) -> Any:
        key = json_bytes(value)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = value
            if len(self._held) > HELD:
                self._held.popitem(last=False)
        else:
            self._held.move_to_end(key)
        return held
