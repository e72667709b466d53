"""The keys of `agl.credit` and `agl.advantage`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slime_agl.config.keys import key
from slime_agl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CreditConfig:
    mode: Literal["outcome", "per_turn", "per_agent"] = key(
        "outcome",
        "the reward of an execution's Samples: `outcome` the execution's for all, `per_turn` the discounted return "
        "from the turn at which a Sample begins, `per_agent` the reward named after the model",
    )
    discount: float = key(1.0, "discount per turn, under `per_turn`")
    span: Literal["sample", "turn"] = key(
        "sample",
        "what one credit covers: a whole `sample`, or each `turn` inside it, which needs "
        "`--custom-advantage-function-path slime_agl.advantage.turns` (or `.gae`) and `per_turn` or a function",
    )
    function: str | None = key(
        None,
        "import path of `f(execution)`, sync or async, that returns the credit of turns: a list with a number per turn "
        "of `execution.ledger.turns`, or a mapping from turn index to number; in place of `mode`, under `span: turn`",
    )
    baseline: Literal["group", "state"] = key(
        "group",
        "what a turn is compared with, under `span: turn`: the executions of its `group`, or also the turns of its "
        "group that answered the same prompt (`state`, as GiGPO)",
    )
    state_weight: float = key(1.0, "weight of the comparison with turns that answered the same prompt")

    def __post_init__(self) -> None:
        if self.function is not None and self.span != "turn":
            raise ConfigError(
                f"agl.credit.function is {self.function}, but agl.credit.span is {self.span!r}; it gives credit to "
                "turns: set `span: turn`, or leave it out"
            )
        if self.span == "turn" and self.function is None and self.mode != "per_turn":
            raise ConfigError(
                f"agl.credit.span is 'turn', but agl.credit.mode is {self.mode!r}, which has one credit per Sample; "
                "set `mode: per_turn`, or name a function"
            )
        if self.baseline == "state" and self.span != "turn":
            raise ConfigError(
                f"agl.credit.baseline is 'state', but agl.credit.span is {self.span!r}; only turns have a state: "
                "set `span: turn`, or leave the baseline out"
            )
        if not 0 <= self.discount <= 1:
            raise ConfigError(f"agl.credit.discount is {self.discount}, it must lie between 0 and 1")
        if self.discount != 1 and self.mode != "per_turn":
            raise ConfigError(
                f"agl.credit.discount is {self.discount}, but agl.credit.mode is {self.mode!r}; "
                "only `per_turn` discounts: set that mode, or leave the discount out"
            )


@dataclass(frozen=True, slots=True)
class AdvantageConfig:
    unit: Literal["token", "turn"] = key(
        "token",
        "what slime's `--gamma` and `--lambd` discount in `slime_agl.advantage.gae`: each sampled `token`, or each "
        "`turn`, within which nothing is discounted",
    )
    bootstrap: bool = key(
        True, "after a Sample that was cut off, take its last value for what would have followed, in place of 0"
    )
