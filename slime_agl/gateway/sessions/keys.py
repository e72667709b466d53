"""Addresses and keys: which attempt a request belongs to, and whether it may speak for it."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping

KEY_PREFIX = "sk-agl-"


def attempt_path(rollout_id: str, attempt_id: str) -> str:
    """The path under which an attempt's agent finds its endpoints (Agent Lightning's ProxyLLM builds the same)."""
    return f"/rollout/{rollout_id}/attempt/{attempt_id}/v1"


def mint_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(24)


def presented_key(headers: Mapping[str, str]) -> str:
    """The key in `Authorization: Bearer` or `x-api-key`; '' when there is none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key", "")


def may_enter(presented: str, own: str, *, required: bool) -> bool:
    """Whether a presented key opens an attempt whose key is `own`. Compares in constant time.

    Unless keys are required, a placeholder that this gateway never minted passes (agents are
    written with `api_key="dummy"`), while the key of another attempt does not.
    """
    # Header values that are not UTF-8 come with their bytes as surrogates.
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
