"""Recognise credentials by their exact shape, or by the name of the field that holds them.

Shapes are those that providers document: prefix, alphabet and length, delimited on both sides, so that words such as
`risk-adjusted-returns-2024` do not match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SHAPES = (
    rb"sk-agl-[A-Za-z0-9_-]{32}",  # the gateway's own, see slime_agl.gateway.door
    rb"sk-[A-Za-z0-9]{48}|sk-[0-9a-f]{32}",
    rb"sk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,100}T3BlbkFJ[A-Za-z0-9_-]{20,100}",
    rb"sk-ant-[a-z]{3,8}[0-9]{2}-[A-Za-z0-9_-]{80,120}",
    rb"sk-or-v1-[0-9a-f]{64}",
    rb"gh[pousr]_(?:[A-Za-z0-9]{76}|[A-Za-z0-9]{36})",
    rb"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    rb"glpat-[A-Za-z0-9_-]{20}|glpat-[A-Za-z0-9_-]{27,300}\.[0-9a-z]{9}",
    rb"hf_[A-Za-z0-9]{34}",
    rb"(?:AKIA|ASIA)[A-Z0-9]{16}",
    rb"AIza[A-Za-z0-9_-]{35}",
    rb"xox[bpars]-[0-9]{8,14}-[0-9]{8,14}-(?:[0-9]{8,14}-)?[A-Za-z0-9]{24,64}",
    rb"[sr]k_(?:live|test)_[A-Za-z0-9]{24,99}",
    rb"npm_[A-Za-z0-9]{36}",
    rb"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,400}",
    rb"gsk_[A-Za-z0-9]{52}",
    rb"xai-[A-Za-z0-9]{80}",
    rb"pplx-[A-Za-z0-9]{48}",
    rb"nvapi-[A-Za-z0-9_-]{64}",
    rb"r8_[A-Za-z0-9]{37}",
    rb"tvly-(?:dev-|prod-)?[A-Za-z0-9]{32}",
    rb"e2b_[0-9a-f]{40}",
    rb"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
)
_SHAPE = re.compile(rb"(?<![A-Za-z0-9_-])(?:" + rb"|".join(_SHAPES) + rb")(?![A-Za-z0-9_-])")
_KEY_BLOCK = re.compile(
    rb"-----BEGIN ([A-Z ]{0,20})PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{64,8192}-----END \1PRIVATE KEY-----"
)
# An authorization header, as in requests and tracebacks. Its value must contain a digit, which placeholders lack.
_HEADER = re.compile(
    rb"""(?i)authorization["']{0,2}\s{0,4}[:=,]\s{0,4}["']?(?:bearer|basic|token)\s{1,4}"""
    rb"""(?=[^\s"']{0,400}[0-9])([A-Za-z0-9._~+/=-]{16,4096})"""
)
# Substrings, one of which every shape contains. Searching for these first is about forty times as fast.
_SIGNS = (
    *(b"sk-", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"glpat-", b"hf_", b"AKIA", b"ASIA"),
    *(b"AIza", b"xox", b"k_live_", b"k_test_", b"npm_", b"pypi-", b"gsk_", b"xai-", b"pplx-", b"nvapi-", b"r8_"),
    *(b"tvly-", b"e2b_", b"SG."),
)
_NAMES = frozenset(
    {"authorization", "proxyauthorization", "accesstoken", "authtoken", "refreshtoken", "clientsecret", "secretkey"}
    | {"secretaccesskey", "awssecretaccesskey", "privatekey", "hftoken", "githubtoken", "ghtoken", "bearertoken"}
)
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token)\s+")
# Shorter values are placeholders: EMPTY, none, dummy.
_SHORTEST = 8


def spans(text: bytes) -> Iterator[tuple[int, int]]:
    """Find credentials in UTF-8 text, left to right and without overlaps."""
    found = []
    if any(sign in text for sign in _SIGNS):
        found += [match.span() for match in _SHAPE.finditer(text)]
    if b"PRIVATE KEY-----" in text:
        found += [match.span() for match in _KEY_BLOCK.finditer(text)]
    if b"uthorization" in text or b"UTHORIZATION" in text:
        found += [match.span(1) for match in _HEADER.finditer(text)]
    end = 0
    for start, stop in sorted(found):
        if start >= end:
            yield start, stop
            end = stop


def is_named(name: str) -> bool:
    """Check for a field name of credentials: `api_key`, `OPENAI_API_KEY`, `x-api-key`, `Authorization`."""
    plain = re.sub(r"[^a-z0-9]", "", name.rpartition(".")[2].lower())
    return plain.endswith("apikey") or plain in _NAMES


def is_value(value: str) -> bool:
    """Check that a value of such a field can be a credential, not a placeholder or a variable reference."""
    bare = _SCHEME.sub("", value, count=1).strip()
    return len(bare) >= _SHORTEST and " " not in bare and not bare.startswith(("$", "<", "{", "%", "***"))
