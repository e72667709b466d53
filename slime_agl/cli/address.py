"""Addresses that are to be bound."""

from __future__ import annotations

import socket

from slime_agl.errors import ConfigError


def require_bindable(host: str, port: int, mend: str) -> None:
    """Find out whether an address can be bound. mend: what to do when it cannot.

    Raises:
        ConfigError: it cannot.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be bound ({error.strerror}); {mend}") from error
