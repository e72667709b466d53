"""The keys of `agl.sandbox`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slime_agl.config.keys import at_least, key
from slime_agl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    cpus: float | None = key(None, "cores of a sandbox; null for no bound")
    memory_mb: int | None = key(
        None, "its memory in MiB; of each of its processes where this user can make no control groups"
    )
    storage_mb: int | None = key(
        None, "the files of a `bwrap` sandbox in MiB, which are then held in memory; of each file with `local`"
    )
    processes: int | None = key(
        1024,
        "its processes and threads at a time; `local` needs control groups for it, `bwrap` them or a user other than "
        "root",
    )

    def __post_init__(self) -> None:
        for name in ("memory_mb", "storage_mb", "processes"):
            at_least(f"agl.sandbox.limits.{name}", getattr(self, name), 1)
        if self.cpus is not None and self.cpus <= 0:
            raise ConfigError(f"agl.sandbox.limits.cpus is {self.cpus:g}, it must be above 0, or null for no bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    backend: str = key(
        "bwrap",
        "where programs run: `bwrap` (bubblewrap, Linux; reaches the gateway only), `local` (this user's rights, "
        "isolates nothing), `docker`, `podman`, `apptainer`, `e2b`, `modal`, `daytona`, or the import path of a class "
        "with the shape of slime's `slime.agent.sandbox`",
    )
    image: str = key(
        "",
        "image for tasks that name none: a container image, a template of a cloud, or with `bwrap` the folder of a "
        "root file system (default: this machine's `/usr`)",
    )
    concurrency: int = key(64, "maximum sandboxes at a time")
    create_per_second: float | None = key(None, "maximum rate of creation; null for no bound")
    retries: int = key(2, "how often a sandbox is created again after a failure, with pauses that grow")
    ttl_seconds: float = key(3600.0, "maximum life of a sandbox, after which it is ended")
    start_seconds: float = key(60.0, "deadline for a sandbox to be ready, its image present")
    warm: int = key(0, "sandboxes of each kind that are kept ready for the next execution")
    env: tuple[str, ...] = key(
        (),
        "environment variables of this process for sandboxes with an open network, where programs are installed, such "
        "as a package index's; others get none",
    )
    mounts: Mapping[str, str] | None = key(None, "folders of this machine that sandboxes can read: path inside to path")
    dir: str = key("", "folder for the files of `local` and `bwrap` sandboxes; default: one of its own below `/tmp`")
    limits: LimitsConfig = LimitsConfig()

    def __post_init__(self) -> None:
        at_least("agl.sandbox.concurrency", self.concurrency, 1)
        at_least("agl.sandbox.retries", self.retries, 0)
        at_least("agl.sandbox.warm", self.warm, 0)
        for name in ("ttl_seconds", "start_seconds", "create_per_second"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"agl.sandbox.{name} is {value:g}, it must be above 0")
        for path in self.mounts or ():
            if not path.startswith("/"):
                raise ConfigError(f"agl.sandbox.mounts: {path!r} must be an absolute path inside the sandbox")
