"""The boundaries that can break, one class each.

A failed rollout is data and travels as a value; these exceptions are for the
caller who has something to mend: the user's configuration, the machine, or us.
Every message names the thing, the numbers and the next step.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SlimeAglError(Exception):
    """Base of all errors raised on purpose. `boundary` says which side has to act."""

    boundary = "slime_agl"


class ConfigError(SlimeAglError, ValueError):
    """A flag, a YAML key or a data row that the user has to change."""

    boundary = "config"


class InvariantError(SlimeAglError):
    """A token invariant does not hold. Never caught: training on such tokens is silently wrong."""

    boundary = "tokens"


class TemplateError(SlimeAglError):
    """The tokenizer or its chat template cannot do what a request needs."""

    boundary = "chat"


class EngineError(SlimeAglError):
    """The inference engine answered with an error, or not at all.

    `status` is the HTTP status, or None when no answer arrived.
    """

    boundary = "engine"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineUnavailable(EngineError):
    """No engine could be reached within the deadline."""


class EngineRejected(EngineError):
    """The engine refused the request (4xx); trying again would be refused again.

    `overflow`: because prompt and answer do not fit into its context.
    """

    def __init__(self, message: str, *, status: int | None = None, overflow: bool = False) -> None:
        super().__init__(message, status=status)
        self.overflow = overflow


class AgentError(SlimeAglError):
    """The agent failed in every execution that could have been used."""

    boundary = "agent"


class RewardError(SlimeAglError):
    """An execution has no reward, or its reward is not usable."""

    boundary = "reward"


class HostError(SlimeAglError):
    """slime, or a data source, did not keep its side of the contract."""

    boundary = "host"


class RecordError(SlimeAglError, ValueError):
    """The record of a run cannot be read."""

    boundary = "record"


def closest(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for the known name nearest to `name`, or an empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {match[0]!r}?" if match else ""
