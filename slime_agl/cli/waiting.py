"""A sign of life while something long is under way."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


def waiting(words: str, *, quiet: bool = False) -> AbstractContextManager[object]:
    """Turn a wheel with `words` on stderr, when that is a terminal."""
    if quiet:
        return nullcontext()
    # Imported here: help and completion by Tab need not wait for it.
    from rich.console import Console

    return Console(stderr=True).status(words)
