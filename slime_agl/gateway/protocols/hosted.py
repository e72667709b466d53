"""Hosted tools: those that a service runs itself, such as web search.

Clients offer them in every request, whether or not anybody wants them. The trained model cannot call one, so it is left
out, as if the client had not offered it, and counted. A request that demands one is refused (see `forced_tool`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_agl.gateway.protocols.fields import Count

LEFT_OUT = "hosted_tools/"
# Types begin with these words; what follows is a version.
KINDS = (
    *("web_search", "web_fetch", "file_search", "code_interpreter", "code_execution", "image_generation"),
    *("mcp", "tool_search"),
)


def hosted(tool: Mapping[str, Any], count: Count) -> bool:
    """Return True, and count the tool as left out, if a service would run it."""
    kind = tool.get("type")
    found = next((name for name in KINDS if kind.startswith(name)), None) if isinstance(kind, str) else None
    if found is not None:
        count(LEFT_OUT + found)
    return found is not None
