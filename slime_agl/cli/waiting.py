"""A spinner for slow work."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


def waiting(words: str, *, quiet: bool = False) -> AbstractContextManager[object]:
    """Show a spinner with `words` on stderr, if that is a terminal."""
    if quiet:
        return nullcontext()
    from rich.console import Console  # keeps help and Tab completion fast

    return Console(stderr=True).status(words)
