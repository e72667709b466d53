"""Harnesses by name."""

from __future__ import annotations

import dataclasses

from slime_agl.config.harness import HarnessConfig
from slime_agl.errors import ConfigError, closest
from slime_agl.harness.program import Program
from slime_agl.harness.programs import aider, claude_code, codex, goose, mini_swe_agent, opencode, openhands, qwen_code

# All but the last have a shell tool and are run in every backend by scripts/harnesses.
_MODULES = (claude_code, codex, opencode, qwen_code, mini_swe_agent, openhands, goose, aider)
PROGRAMS = {module.PROGRAM.name: module.PROGRAM for module in _MODULES}


def program_named(name: str, version: str = "") -> Program:
    """Find a harness. version: '' for the one that is tested here.

    Raises:
        ConfigError: the harness is unknown.
    """
    if name not in PROGRAMS:
        raise ConfigError(f"there is no harness {name!r}.{closest(name, PROGRAMS)} Known ones: {', '.join(PROGRAMS)}")
    return dataclasses.replace(PROGRAMS[name], version=version) if version else PROGRAMS[name]


def program_of(config: HarnessConfig, named: str = "") -> Program:
    """The program of a configuration. named: a row's own harness, '' if it names none.

    Raises:
        ConfigError: see `program_named`.
    """
    if named and named != config.harness:
        return program_named(named)
    if config.harness:
        return program_named(config.harness, config.version)
    return Program(name="command", command=config.command, install=config.install)
