"""`agl.train`: which conversations train."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from slime_agl.config.keys import key
from slime_agl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    system: str | None = key(
        None,
        "regular expression: only conversations train in whose system prompt it is found. What does not train is "
        "answered as always, and counted by reason; for agents that also judge, summarise or make titles",
    )
    model: str | None = key(None, "the same for the model name that the agent asks for, which it must match as a whole")
    tools: str | None = key(None, "the same for the name of one of the tools offered; `.+` is any tool")
    except_system: str | None = key(None, "the opposite of `system`: what it is found in does not train")
    except_model: str | None = key(None, "the opposite of `model`")
    except_tools: str | None = key(None, "the opposite of `tools`")

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            pattern = getattr(self, item.name)
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise ConfigError(
                    f"agl.train.{item.name} is {pattern!r}, which is not a valid regular expression: {error}"
                ) from error
