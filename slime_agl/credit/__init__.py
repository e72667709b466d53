"""Derive the reward of each Sample from those of its execution, and from them the values that GRPO trains on."""
