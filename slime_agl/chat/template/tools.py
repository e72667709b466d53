"""The tools that a request offers to the model."""

from __future__ import annotations

import json
from collections.abc import Iterable

import orjson


class Tools(list[dict]):
    """A list of tools in OpenAI's chat format; never modified. text: the list as JSON, a cheap key for caches."""

    def __init__(self, tools: Iterable[dict]) -> None:
        super().__init__(tools)
        try:
            self.text = orjson.dumps(list(self))
        except TypeError:  # numbers beyond 64 bits, half a surrogate pair
            self.text = json.dumps(self).encode()
