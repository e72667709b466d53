"""The keys of `agl.agent`, where it is a mapping, and of `agl.tasks`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slime_agl.config.keys import key
from slime_agl.errors import ConfigError

Ending = Literal["grade", "zero", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessConfig:
    """A program as the agent: one of the harnesses, or a command."""

    harness: str = key("", "program that is the agent: `claude_code`, `codex`, `opencode`, ...; a row may name another")
    version: str = key("", "version of the harness; default: the one that this package is tested with")
    command: str = key("", "shell command that is the agent, in place of a harness")
    install: str = key("", "shell command that installs what `command` needs, once per sandbox")
    env: Mapping[str, str] = key(
        {}, "environment variables of the program, by the name of the task's field; other text is passed on as it is"
    )
    reward: Literal["verifier", "agent"] = key(
        "verifier",
        "`verifier`: the task's tests, in a fresh sandbox; `agent`: what the program posts to AGL_EVENT_URL",
    )
    timeout_seconds: float = key(1800.0, "deadline of the program, without installation and grading")
    on_timeout: Ending = key(
        "grade",
        "at its deadline: `grade` its work as it stands, reward it with `agl.failure.negative_reward` "
        "(`zero`), or treat it as `agl.failure.agent_error` (`fail`)",
    )
    on_exit: Ending = key("grade", "the same if the program ended with another status than 0")
    on_no_diff: Ending = key("zero", "the same if it changed nothing")

    def __post_init__(self) -> None:
        if bool(self.harness) == bool(self.command):
            given = f"harness: {self.harness}, command: {self.command}" if self.harness else "neither"
            raise ConfigError(f"agl.agent needs either a harness or a command, got {given}")
        if self.timeout_seconds <= 0:
            raise ConfigError(f"agl.agent.timeout_seconds is {self.timeout_seconds:g}, it must be above 0")
        if self.command and self.version:
            raise ConfigError("agl.agent.version is that of a harness; a command names its own version")
        if self.harness and self.install:
            raise ConfigError("agl.agent.install belongs to a command; a harness installs itself")

    def __str__(self) -> str:
        return f"harness {self.harness}" if self.harness else f"command {self.command!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    harbor: str | None = key(
        None,
        "folder of Harbor task directories; a row's field `task` is the path of one, relative to it. $NAME is "
        "an environment variable",
    )

    @property
    def folder(self) -> Path | None:
        """The folder, with variables filled in. Raises ConfigError if one is not set."""
        if self.harbor is None:
            return None
        path = os.path.expandvars(self.harbor)
        if "$" in path:
            raise ConfigError(f"agl.tasks.harbor is {self.harbor!r}, and an environment variable in it is not set")
        return Path(path).expanduser().resolve()
