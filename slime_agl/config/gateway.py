"""The keys of `agl.gateway`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from slime_agl.config.keys import key
from slime_agl.errors import ConfigError

WORKER, HOST, PORT = "{worker}", "{host}", "{port}"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    host: str = key("127.0.0.1", "address the gateway binds")
    port: int = key(0, "port the gateway binds; 0 takes a free one; with workers, each adds its number")
    public_url: str | None = key(
        None,
        "URL under which agents reach the gateway, if not `http://host:port`; `{worker}` in it is the worker's number, "
        "`{host}` the name of its machine, `{port}` its gateway's port, so that an ingress can tell workers apart",
    )
    auth: Literal["auto", "required"] = key(
        "auto",
        "`required`: accept only an attempt's own key; `auto`: the same unless `host` and `public_url` are loopback, "
        "where a placeholder such as `dummy` is accepted too, but not another attempt's key; requests from web pages "
        "(a foreign Host, any Origin, bodies other than `application/json`) are always refused",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"agl.gateway.port is {self.port}, it must lie between 0 (any free port) and 65535")
        if self.public_url is None:
            return
        if not self.public_url.startswith(("http://", "https://")):
            raise ConfigError(f"agl.gateway.public_url is {self.public_url!r}, it must start with http:// or https://")
        for name in re.findall(r"[{][^}]*[}]?|[}]", self.public_url):
            if name not in (WORKER, HOST, PORT):
                raise ConfigError(
                    f"agl.gateway.public_url is {self.public_url!r}, and {name} is not one of {WORKER}, {HOST} and "
                    f"{PORT}"
                )

    @property
    def leads_to_workers(self) -> bool:
        """Several gateways can be told apart by their URLs."""
        return self.public_url is None or WORKER in self.public_url or PORT in self.public_url

    def url(self, *, host: str, port: int, worker: int = 0) -> str | None:
        """The public URL of one gateway. host: name of its machine. None without `public_url`."""
        if self.public_url is None:
            return None
        named = self.public_url.replace(WORKER, str(worker)).replace(HOST, host)
        return named.replace(PORT, str(port)).rstrip("/")
