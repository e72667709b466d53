"""`agl.store`: an Agent Lightning store whose runners are other processes."""

from __future__ import annotations

from dataclasses import dataclass

from slime_agl.config.keys import key as setting
from slime_agl.errors import ConfigError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    url: str | None = setting(
        None,
        "address of an Agent Lightning store, such as a Trainer's `http://localhost:4747`: executions are enqueued "
        "there, and its runners run the agent in place of this process",
    )
    serve: str | None = setting(
        None,
        "`host:port` at which to serve such a store from here, for runners that are started with "
        "`AGL_CURRENT_ROLE=runner`; needs `agl.runners.mode: external`",
    )
    key: str | None = setting(
        None,
        "key of the store: sent to `url` as a bearer token; demanded by `serve`, where runners pass it as the password "
        "of the address (`AGL_SERVER_HOST=agl:KEY@host`); required where `serve` is not loopback",
    )
    resources: str | None = setting(
        None, "id of resources in the store that agents get beside the model, such as a Trainer's `initial_resources`"
    )

    def __post_init__(self) -> None:
        if self.url is not None and self.serve is not None:
            raise ConfigError(
                f"agl.store.url is {self.url} and agl.store.serve is {self.serve}; name a store that runs elsewhere, "
                "or the address at which to serve one, not both"
            )
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"agl.store.url is {self.url!r}, it must start with http:// or https://")
        if self.serve is not None:
            host, port = self.address
            if not host or not 1 <= port <= 65535:
                raise ConfigError(f"agl.store.serve is {self.serve!r}, it must be host:port, such as 127.0.0.1:4747")
            if host not in LOOPBACK and not self.key:
                raise ConfigError(
                    f"agl.store.serve is {self.serve}, which other machines reach, and agl.store.key is not set; set "
                    "a key, or serve on 127.0.0.1"
                )
        if self.key is not None and (not self.key or any(mark in self.key for mark in "@:/ ")):
            raise ConfigError("agl.store.key must not be empty, nor contain '@', ':', '/' or spaces")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `serve`; the port is 0 if it is not a number."""
        host, _, port = (self.serve or "").rpartition(":")
        return host.strip("[]"), int(port) if port.isdecimal() else 0

    @property
    def external(self) -> bool:
        return self.url is not None or self.serve is not None
