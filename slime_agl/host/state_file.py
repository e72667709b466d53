"""State files that a run resumes from: written atomically, and refused if a single bit has changed.

The first line has format, version, and length and digest of the second, which is JSON.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

import orjson

from slime_agl.errors import HostError

FORMAT, VERSION = "slime_agl.data_source", 2
PART = ".part"


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write JSON-compatible data, replacing the file atomically and durably.

    Raises:
        HostError: the file cannot be written; an existing one is unchanged.
    """
    body = orjson.dumps(state)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(part, _head(body) + body)
        part.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise HostError(f"{path} cannot be written ({error.strerror}); make room there, or change --save") from error
    finally:
        part.unlink(missing_ok=True)


def read_state(path: Path, *, instead: str) -> dict[str, Any]:
    """Read what `write_state` wrote.

    instead: the user's remedy for a damaged file, as the end of a sentence.

    Raises:
        HostError: the file cannot be read, has another version, or is damaged.
    """
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise HostError(f"{path} cannot be read ({error.strerror}); {instead}") from error
    if head + b"\n" != _head(body):
        raise HostError(f"{path} is damaged or of another version: {_difference(head, body)}; {instead}")
    return orjson.loads(body)


def remove_parts(directory: Path) -> int:
    """Remove unfinished files of killed runs; returns how many."""
    left = [part for part in directory.glob(f"*.json*{PART}") if part.is_file()]
    for part in left:
        part.unlink(missing_ok=True)
    return len(left)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Make a rename durable by syncing its directory."""
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _head(body: bytes) -> bytes:
    facts = {"format": FORMAT, "version": VERSION, "length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    return orjson.dumps(facts) + b"\n"


def _difference(head: bytes, body: bytes) -> str:
    """Describe where the first line differs from the actual content."""
    expected = orjson.loads(_head(body))
    try:
        said = orjson.loads(head)
        differ = [name for name in expected if said.get(name) != expected[name]]
    except (ValueError, AttributeError):
        return f"its first line of {len(head)} bytes is not a header, {len(body)} bytes follow"
    if not differ:
        return "its first line has changed"
    if {"format", "version"} & set(differ):
        found = ", ".join(f"{name} {said.get(name)!r}" for name in ("format", "version"))
        return f"found {found}, this version reads format {FORMAT!r}, version {VERSION}"
    return ", ".join(f"{name} should be {said.get(name)!r} and is {expected[name]!r}" for name in differ)
