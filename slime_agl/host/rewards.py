"""Find the reward that slime's options name for a sample."""

from __future__ import annotations

from typing import Any


def reward_type(args: Any, sample: Any) -> str:
    """Name of the rule, '' for none; a row's metadata takes precedence over the flag."""
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return (metadata.get("rm_type") or getattr(args, "rm_type", None) or "").strip()


def has_reward_option(args: Any, sample: Any) -> bool:
    """Return True if slime's reward options (a custom path or an rm_type) cover this sample."""
    custom = sample.custom_rm_path or getattr(args, "custom_rm_path", None)
    return bool(custom or reward_type(args, sample))
