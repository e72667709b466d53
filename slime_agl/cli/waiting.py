"""A sign of life while something long is under way."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from rich.console import Console


def waiting(words: str, *, quiet: bool = False) -> AbstractContextManager[object]:
    """Turn a wheel with `words` on stderr, when that is a terminal."""
    return nullcontext() if quiet else Console(stderr=True).status(words)
