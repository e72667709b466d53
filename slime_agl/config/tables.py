"""The keys of `agl.tables`."""

from __future__ import annotations

from dataclasses import dataclass

from slime_agl.config.keys import at_least, key


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesConfig:
    every: int = key(
        10,
        "steps between two tables of conversations in W&B or TensorBoard, where slime's flags name them; each "
        "evaluation has one too; 0 for none",
    )
    conversations: int = key(8, "conversations in a table, evenly spaced from the lowest reward to the highest")

    def __post_init__(self) -> None:
        at_least("agl.tables.every", self.every, 0)
        at_least("agl.tables.conversations", self.conversations, 0)
