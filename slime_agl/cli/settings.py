"""Settings files in the format of --custom-config-path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from slime_agl.errors import ConfigError


def read_settings(config: Path | None) -> dict[str, Any]:
    """Read the mapping in a YAML file; empty without a file.

    Raises:
        ConfigError: the file is not YAML, or not a mapping.
    """
    if config is None:
        return {}
    try:
        settings = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{config} is not YAML: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{config} holds a {type(settings).__name__}, expected a mapping")
    return settings


def read_section(config: Path | None) -> dict[str, Any]:
    """Read the `agl:` section of a settings file; empty without one.

    Raises:
        ConfigError: the file or the section cannot be read as a mapping.
    """
    section = read_settings(config).get("agl") or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{config}: agl must be a mapping of keys to values, got {type(section).__name__}")
    return section
