"""Fields of the configuration and their bounds."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from slime_agl.errors import ConfigError


def at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{name} is {value}, it must be at least {least}")


def key(default: Any, text: str) -> Any:
    """A configuration field with its default and its documentation."""
    return field(default=default, metadata={"help": text})
