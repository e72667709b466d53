"""Access control: agents need the key of their attempt, and requests that a web page made a browser send are refused.

A page can send requests to any address, including this machine's own, and can point its own name at it (DNS rebinding).
Browsers reveal both: Host holds the name the page used, Origin and Sec-Fetch-Site where the page came from.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from slime_agl.gateway.refusal import Refusal

KEY_PREFIX = "sk-agl-"
WILDCARDS = frozenset({"", "0.0.0.0", "::"})
HOSTS_KNOWN = 256
QUOTED = 100


class Door:
    """Checks headers. host: the bound address. public_url: the URL that agents use, if different."""

    def __init__(self, host: str, public_url: str | None = None) -> None:
        public = urlsplit(public_url).hostname if public_url else None
        own = socket.gethostname() if host in WILDCARDS else host
        self._names = {name.lower() for name in (own, public, "localhost") if name}
        self._far = not is_loopback(host)
        self._known: set[str] = set()

    def check(self, headers: Mapping[str, str]) -> None:
        """Admit a request.

        Raises:
            Refusal: 403, a web page sent it, or it names another host.
        """
        host = headers.get("Host", "")
        if host not in self._known:
            self._check_host(host)
        if "Origin" in headers:
            raise _forbidden(f"requests of web pages are not served (Origin {headers['Origin'][:QUOTED]!r})")
        if "Sec-Fetch-Site" in headers and headers["Sec-Fetch-Site"] != "none":
            raise _forbidden(
                f"requests of web pages are not served (Sec-Fetch-Site {headers['Sec-Fetch-Site'][:QUOTED]!r})"
            )

    def _check_host(self, host: str) -> None:
        name = _name(host)
        if name not in self._names and not self._is_own_address(name):
            raise _forbidden(
                f"Host {host[:QUOTED]!r} is not this gateway's; use the base URL that the agent was given, or set "
                "agl.gateway.public_url to the address under which agents reach it"
            )
        if len(self._known) < HOSTS_KNOWN:
            self._known.add(host)

    def _is_own_address(self, name: str) -> bool:
        """Check that the host is a literal address, which unlike a name nobody can repoint."""
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._far or address.is_loopback


def _name(host: str) -> str:
    """The host in a Host header, without brackets and port; '' if malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
        name = parts.hostname or ""
    except ValueError:
        return ""
    plain = parts.netloc == host and not (parts.path or parts.query or parts.fragment or "@" in host)
    return name.removesuffix(".") if plain else ""


def _forbidden(message: str) -> Refusal:
    return Refusal(403, message, type="permission_error", code="forbidden")


def mint_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(24)


def presented_key(headers: Mapping[str, str]) -> str:
    """The key in `Authorization: Bearer` or `x-api-key`; '' if absent."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key", "")


def may_enter(presented: str, own: str, *, required: bool) -> bool:
    """Check that a presented key opens an attempt whose key is `own`. Compares in constant time.

    Unless keys are required, a placeholder such as `api_key="dummy"` passes, but the key of another attempt does not.
    """
    # Header bytes that are not UTF-8 are surrogates.
    if hmac.compare_digest(presented.encode("utf-8", "surrogateescape"), own.encode()):
        return True
    return not required and not presented.startswith(KEY_PREFIX)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
