"""Bind checks."""

from __future__ import annotations

import socket

from slime_agl.errors import ConfigError


def require_bindable(host: str, port: int, advice: str) -> None:
    """Bind the address once, to prove that it can be. advice: the next step if it cannot.

    Raises:
        ConfigError: it cannot.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be bound ({error.strerror}); {advice}") from error
