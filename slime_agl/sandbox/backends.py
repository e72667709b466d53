"""Choose a backend by its name."""

from __future__ import annotations

from slime_agl.config.sandbox import SandboxConfig
from slime_agl.errors import ConfigError, closest
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.local import LocalBackend
from slime_agl.sandbox.protocol import Backend
from slime_agl.sandbox.reach import Reach, Serving

NAMES = ("local",)


def open_backend(config: SandboxConfig, serving: Serving | None = None) -> Backend:
    """Make the backend of a configuration. serving: the gateway of this process, which may serve sandboxes directly.

    Raises:
        ConfigError: there is no such backend.
        SandboxError: this machine cannot run it.
    """
    if config.backend == "local":
        return LocalBackend(Home(config.dir), Reach(serving), start_seconds=config.start_seconds)
    raise ConfigError(f"agl.sandbox.backend is {config.backend!r}.{closest(config.backend, NAMES)}")
