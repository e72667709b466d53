"""The backend of a configuration."""

from __future__ import annotations

from typing import Any

from slime_agl.host import load_object
from slime_agl.sandbox.protocol import Backend


def make_backend(config: Any) -> Backend:
    """Make the backend that `agl.sandbox` names.

    Raises:
        ConfigError: it is unknown.
    """
    return load_object(config.backend, key="agl.sandbox.backend")()
