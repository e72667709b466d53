"""JSON as it is written on the wire, of any value that JSON has."""

from __future__ import annotations

import json
from typing import Any

import orjson


def json_bytes(value: Any) -> bytes:
    """The value in UTF-8. A model's arguments may hold numbers of any size and nest deeper than orjson writes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can only escape
        return json.dumps(value, separators=(",", ":")).encode()
