"""The data source that a Sample came from, as slime names it."""

from __future__ import annotations

from typing import Any

UNKNOWN = "unknown"


def source_of(sample: Any) -> str:
    """As slime's `get_source`: the Sample's own `source`, else `source_name` of its metadata, else 'unknown'."""
    own = getattr(sample, "source", None)
    return str(own or (sample.metadata or {}).get("source_name") or UNKNOWN)
