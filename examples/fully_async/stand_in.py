"""Adds like a model, with occasional errors. For run.sh --local and tests."""

from __future__ import annotations


def answer(said: list[tuple[str, str]], luck: float) -> str:
    """Return the sum of all numbers so far; off by ten with luck above 0.8."""
    total = sum(int(text) for role, text in said if role == "user")
    return f"Total: {total + 10 if luck > 0.8 else total}"
