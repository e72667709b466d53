"""What a program is told: the environment contract.

OPENAI_BASE_URL and ANTHROPIC_BASE_URL are the gateway's addresses of the attempt, as the clients of each want them;
AGL_* are the names that agents of Agent Lightning 1.x read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_CONTEXT, DEFAULT_OUTPUT = 200_000, 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a program reaches the model.

    endpoint: the attempt's address, ending in /v1, as seen from where the program runs. key: the attempt's own.
    """

    endpoint: str
    key: str
    model: str


def contract(access: Access, task: Mapping[str, object], *, events: bool) -> dict[str, str]:
    """The variables that every program gets. events: it may post its own reward."""
    given = {
        "OPENAI_BASE_URL": access.endpoint,
        "OPENAI_API_KEY": access.key,
        "ANTHROPIC_BASE_URL": access.endpoint.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": access.key,
        "AGL_OPENAI_BASE_URL": access.endpoint,
        "AGL_KEY": access.key,
        "AGL_INPUT": json.dumps(task, default=str),
        "AGL_MODEL": access.model,
    }
    return given | ({"AGL_EVENT_URL": f"{access.endpoint}/events"} if events else {})


def own_variables(wanted: Mapping[str, str], task: Mapping[str, object]) -> dict[str, str]:
    """Fill `agl.agent.env`: the name of a field of the task gives its value, as JSON unless it is text."""
    return {name: _text(task[value]) if value in task else value for name, value in wanted.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
