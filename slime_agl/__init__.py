"""Train unmodified agents with slime, without losing a token."""

__version__ = "0.1.0"
