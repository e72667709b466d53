"""The tools that a model is shown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import orjson


class Tools(list[dict[str, Any]]):
    """A list of tools in OpenAI's chat shape, never changed once it is made. text: the list as JSON, which tells lists
    apart in constant time."""

    def __init__(self, tools: Iterable[dict[str, Any]]) -> None:
        super().__init__(tools)
        try:
            self.text = orjson.dumps(list(self))
        except TypeError:  # numbers beyond 64 bits, half a surrogate pair
            self.text = json.dumps(self).encode()
