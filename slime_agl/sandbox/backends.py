"""Choose a backend by its name."""

from __future__ import annotations

from slime_agl.config.sandbox import SandboxConfig
from slime_agl.errors import ConfigError, closest
from slime_agl.sandbox.adapted import AdaptedBackend
from slime_agl.sandbox.bwrap import BwrapBackend
from slime_agl.sandbox.clouds import CloudBackend
from slime_agl.sandbox.containers import ContainerBackend
from slime_agl.sandbox.engines import ENGINES
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.kept import KeptBackend
from slime_agl.sandbox.local import LocalBackend
from slime_agl.sandbox.protocol import Backend
from slime_agl.sandbox.reach import Reach, Serving

CLOUDS = ("e2b", "modal", "daytona")
KEPT: dict[str, type[KeptBackend]] = {"bwrap": BwrapBackend, "local": LocalBackend}


def open_backend(config: SandboxConfig, serving: Serving | None = None) -> Backend:
    """Make the backend of a configuration. serving: the gateway of this process, which may serve sandboxes directly.

    Raises:
        ConfigError: there is no such backend.
        SandboxError: this machine cannot run it.
    """
    if config.backend in ENGINES:
        engine = ENGINES[config.backend]()
        return ContainerBackend(engine, Home(config.dir), Reach(serving), start_seconds=config.start_seconds)
    if config.backend in KEPT:
        return KEPT[config.backend](Home(config.dir), Reach(serving), start_seconds=config.start_seconds)
    if config.backend in CLOUDS:
        return CloudBackend(config.backend, Home(config.dir), start_seconds=config.start_seconds)
    if "." in config.backend:
        return AdaptedBackend(config.backend, Home(config.dir), start_seconds=config.start_seconds)
    names = [*KEPT, *ENGINES, *CLOUDS]
    raise ConfigError(
        f"agl.sandbox.backend is {config.backend!r}, not one of {', '.join(names)}.{closest(config.backend, names)}"
    )
