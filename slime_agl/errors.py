"""One exception class per boundary that can break.

A failed rollout is data and travels as a value. These exceptions are for a caller who has something to fix: the
configuration, the machine, or this package. Every message names the thing, the numbers and the next step.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "AgentError",
    "ConfigError",
    "EngineError",
    "EngineRejected",
    "EngineUnavailable",
    "HostError",
    "InvariantError",
    "RecordError",
    "RewardError",
    "RunnerError",
    "SandboxError",
    "SlimeAglError",
    "TeacherError",
    "TemplateError",
]


class SlimeAglError(Exception):
    """Base of all deliberate errors. `boundary` names the side that has to act."""

    boundary = "slime_agl"


class ConfigError(SlimeAglError, ValueError):
    """A flag, a YAML key or a data row that the user has to change."""

    boundary = "config"


class InvariantError(SlimeAglError):
    """A token invariant is broken. Never caught: training on such tokens would be silently wrong."""

    boundary = "tokens"


class TemplateError(SlimeAglError):
    """The tokenizer or its chat template cannot do what a request needs."""

    boundary = "chat"


class EngineError(SlimeAglError):
    """The inference engine returned an error or did not answer. status: the HTTP status, None without an answer."""

    boundary = "engine"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineUnavailable(EngineError):
    """No engine could be reached within the deadline."""


class EngineRejected(EngineError):
    """The engine rejected the request (4xx); a retry would be rejected too.

    overflow: prompt and answer do not fit into its context.
    """

    def __init__(self, message: str, *, status: int | None = None, overflow: bool = False) -> None:
        super().__init__(message, status=status)
        self.overflow = overflow


class EngineFailure(NamedTuple):
    """An engine error as a value, for records. rejected: it was an EngineRejected."""

    message: str
    rejected: bool = False


class AgentError(SlimeAglError):
    """The agent failed in every execution that could have been used."""

    boundary = "agent"


class SandboxError(SlimeAglError):
    """A sandbox could not be created, reached or used: the infrastructure's fault, not the policy's."""

    boundary = "sandbox"


class SandboxExhausted(SandboxError):
    """A sandbox failed as often as `agl.sandbox.retries` allows, or would fail alike again; callers do not retry it."""


class RunnerError(SlimeAglError):
    """A runner of another process ended, or can no longer reach its store, while its agent ran."""

    boundary = "runner"


class RewardError(SlimeAglError):
    """An execution has no reward, or an unusable one."""

    boundary = "reward"


class TeacherError(SlimeAglError):
    """The teacher of a distillation does not answer, or its scores cannot be those of the tokens it was sent."""

    boundary = "teacher"


class HostError(SlimeAglError):
    """slime or a data source broke its side of the contract."""

    boundary = "host"


class RecordError(SlimeAglError, ValueError):
    """The record of a run cannot be read."""

    boundary = "record"


def closest(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for the known name nearest to `name`, or an empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {match[0]!r}?" if match else ""
