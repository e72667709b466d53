"""What is to be known of a program to run it as an agent."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# Statuses of a shell that could not run the program: the sandbox's fault.
NOT_RUN = {126: "not executable", 127: "not found"}
OURS = frozenset({*NOT_RUN.values(), "configuration"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellTool:
    """The program's tool that runs a shell command, for scripted answers.

    more: its other required arguments. last: the command that ends its work, '' if an answer without a call does.
    """

    name: str
    command: str = "command"
    more: Mapping[str, object] = field(default_factory=dict)
    last: str = ""

    def arguments(self, command: str) -> dict[str, object]:
        """The arguments of a call that runs a command."""
        return {self.command: command, **self.more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A harness.

    version: the one that is tested here. registry: where `packages` come from, '' if nothing is installed.
    packages: as the registry's client takes them; `$version` stands for the version. executable: its name.
    command: shell line that runs it in the task's folder. $AGL_PROMPT_FILE has the instruction, $AGL_MODEL the model,
    and the environment contract stands in the environment (see `environment`).
    files: by path below the home folder; env: more variables. `$OPENAI_BASE_URL` and others of the contract are
    filled in; a dollar sign is `$$`.
    exits: meaning of its statuses; those named 'configuration' are our fault, the others the policy's.
    """

    name: str
    version: str = ""
    registry: Literal["npm", "pip", ""] = ""
    packages: tuple[str, ...] = ()
    executable: str = ""
    python: tuple[str, ...] = ()
    command: str
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    exits: Mapping[int, str] = field(default_factory=dict)
    shell: ShellTool | None = None
    install: str = ""

    def requirements(self) -> list[str]:
        """The packages with the version filled in."""
        return [package.replace("$version", self.version) for package in self.packages]

    def meaning(self, status: int) -> str:
        """Name a status: '' for success."""
        if status == 0:
            return ""
        return self.exits.get(status) or NOT_RUN.get(status) or f"exit_{status}"


def filled(text: str, contract: Mapping[str, str]) -> str:
    """Fill in `$NAME` of the contract; other dollar signs stay."""
    return string.Template(text).safe_substitute(contract)
