"""Read a task in Harbor's layout: instruction.md, task.toml, environment/Dockerfile, tests/test.sh, solution/solve.sh.

What changes how a task runs and is not supported is refused by name; the rest of task.toml is not read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_agl.errors import ConfigError
from slime_agl.harness.dockerfile import Recipe, read_dockerfile

SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """A task directory. name: its own, else the folder's. seconds: see task.toml; limits: None where it sets none."""

    path: Path
    name: str
    instruction: str
    recipe: Recipe
    tests: Path
    solution: Path | None
    agent_seconds: float | None = None
    verifier_seconds: float = SECONDS
    build_seconds: float = SECONDS
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None


def find_tasks(root: Path) -> list[Path]:
    """The task directories in a folder, or the folder itself if it is one, in order of their names.

    Raises:
        ConfigError: there is none.
    """
    if (root / "task.toml").is_file():
        return [root]
    found = sorted(path.parent for path in root.glob("*/task.toml"))
    if not found:
        raise ConfigError(f"{root} has no task directory: a folder with task.toml and instruction.md")
    return found


def read_task(path: Path) -> HarborTask:
    """Read a task directory.

    Raises:
        ConfigError: a file is missing or malformed, or the task asks for what is not supported.
    """
    instruction = _text(path / "instruction.md")
    try:
        settings = tomllib.loads(_text(path / "task.toml"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path / 'task.toml'} is not TOML: {error}") from error
    _refuse(path, settings)
    if not (path / "tests" / "test.sh").is_file():
        raise ConfigError(f"{path} has no tests/test.sh, so nothing can be graded")
    environment, verifier = _table(path, settings, "environment"), _table(path, settings, "verifier")
    solution = path / "solution"
    return HarborTask(
        path=path.resolve(),
        name=str(_table(path, settings, "task").get("name") or path.name),
        instruction=instruction,
        recipe=_recipe(path / "environment", environment),
        tests=(path / "tests").resolve(),
        solution=solution.resolve() if (solution / "solve.sh").is_file() else None,
        agent_seconds=_seconds(path, _table(path, settings, "agent"), "timeout_sec", None),
        verifier_seconds=_seconds(path, verifier, "timeout_sec", SECONDS) or SECONDS,
        build_seconds=_seconds(path, environment, "build_timeout_sec", SECONDS) or SECONDS,
        verifier_env=_strings(path, verifier, "env"),
        solution_env=_strings(path, _table(path, settings, "solution"), "env"),
        cpus=environment.get("cpus"),
        memory_mb=environment.get("memory_mb"),
        storage_mb=environment.get("storage_mb"),
    )


def _recipe(folder: Path, environment: Mapping[str, Any]) -> Recipe:
    dockerfile = folder / "Dockerfile"
    image, workdir = environment.get("docker_image"), environment.get("workdir")
    if image:
        # The image is built already: the Dockerfile tells only how.
        given = read_dockerfile(dockerfile) if dockerfile.is_file() else Recipe()
        recipe = Recipe(image=str(image), workdir=given.workdir)
    elif dockerfile.is_file():
        recipe = read_dockerfile(dockerfile)
    else:
        recipe = Recipe()
    recipe.workdir = str(workdir or recipe.workdir)
    recipe.env |= {str(name): str(value) for name, value in (environment.get("env") or {}).items()}
    return recipe


def _refuse(path: Path, settings: Mapping[str, Any]) -> None:
    environment = settings.get("environment") or {}
    asked = {
        "steps": settings.get("steps"),
        "environment.gpus": environment.get("gpus"),
        "environment.mcp_servers": environment.get("mcp_servers"),
        "environment.os": environment.get("os") if environment.get("os") not in (None, "linux") else None,
        "environment.compose": (path / "environment" / "docker-compose.yaml").exists(),
    }
    if unsupported := [name for name, value in asked.items() if value]:
        raise ConfigError(f"{path / 'task.toml'} asks for {', '.join(unsupported)}, which is not supported")


def _table(path: Path, settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path / 'task.toml'}: {name} must be a table, got {value!r:.100}")
    return value


def _seconds(path: Path, table: Mapping[str, Any], name: str, default: float | None) -> float | None:
    value = table.get(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
        raise ConfigError(f"{path / 'task.toml'}: {name} is {value!r}, it must be a number above 0")
    return value


def _strings(path: Path, table: Mapping[str, Any], name: str) -> dict[str, str]:
    value = table.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path / 'task.toml'}: {name} must be a table, got {value!r:.100}")
    return {str(key): str(item) for key, item in value.items()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
