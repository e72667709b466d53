"""Files that are given as for --custom-config-path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from slime_agl.errors import ConfigError


def read_settings(config: Path | None) -> dict[str, Any]:
    """The mapping in a YAML file; empty without one.

    Raises:
        ConfigError: it is no YAML, or no mapping.
    """
    if config is None:
        return {}
    try:
        settings = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{config} is no YAML: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{config} holds a {type(settings).__name__}, a mapping was expected")
    return settings
