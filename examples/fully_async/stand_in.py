"""Adds as a model would, wrong at times. For run.sh --local and for tests."""

from __future__ import annotations


def answer(said: list[tuple[str, str]], luck: float) -> str:
    """The sum of all numbers told; ten too many with luck above 0.8."""
    total = sum(int(text) for role, text in said if role == "user")
    return f"Total: {total + 10 if luck > 0.8 else total}"
