"""The part of a Dockerfile that can be replayed in any sandbox: FROM, WORKDIR, ENV, COPY and RUN.

A backend with images starts from FROM; the others start from this machine. An instruction that is not replayed is
refused by name, except those that say how an image is started.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slime_agl.errors import ConfigError

IGNORED = frozenset(
    {"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK", "SHELL", "USER"}
)


@dataclass(frozen=True, slots=True)
class Copy:
    """source: path on this machine. target: absolute path in the sandbox; ends in / for a folder to copy into."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Run:
    """A shell command, and the folder that it runs in."""

    command: str
    workdir: str


@dataclass(slots=True)
class Recipe:
    """An environment. steps: in order; ENV holds for all of them."""

    image: str = ""
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    steps: list[Copy | Run] = field(default_factory=list)


def read_dockerfile(path: Path) -> Recipe:
    """Read a Dockerfile whose context is its folder.

    Raises:
        ConfigError: an instruction cannot be replayed; names it and its line.
    """
    recipe = Recipe()
    for number, word, rest in _instructions(path.read_text(encoding="utf-8")):
        where = f"{path}, line {number}: {word}"
        if word == "FROM":
            if recipe.image:
                raise ConfigError(f"{where}: a Dockerfile in several stages cannot be replayed; give docker_image")
            recipe.image = rest.split()[0]
        elif word == "WORKDIR":
            recipe.workdir = _joined(recipe.workdir, rest)
        elif word == "ENV":
            recipe.env |= _variables(rest, where)
        elif word in ("COPY", "ADD"):
            recipe.steps += _copies(rest, path.parent, recipe.workdir, where)
        elif word == "RUN":
            recipe.steps.append(Run(_command(rest), recipe.workdir))
        elif word == "ARG" and "=" in rest:
            recipe.env |= _variables(rest, where)
        elif word not in IGNORED and word != "ARG":
            raise ConfigError(f"{where} cannot be replayed; give docker_image in task.toml")
    return recipe


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, instruction and rest; continued lines are joined."""
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        if pending and line.lstrip().startswith("#"):
            continue
        first = first if pending else number
        pending += line
        if pending.rstrip().endswith("\\"):
            pending = pending.rstrip()[:-1] + " "
            continue
        word, _, rest = pending.strip().partition(" ")
        yield first, word.upper(), rest.strip()
        pending = ""


def _copies(rest: str, context: Path, workdir: str, where: str) -> list[Copy]:
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    if any(word.startswith("--from") for word in words):
        raise ConfigError(f"{where} --from cannot be replayed; give docker_image in task.toml")
    *sources, target = [word for word in words if not word.startswith("--")]
    found = []
    for source in sources:
        path = (context / source.lstrip("/")).resolve()
        if not path.is_relative_to(context.resolve()) or not path.exists():
            raise ConfigError(f"{where}: there is no {source} in {context}")
        into = target.endswith("/") or target in (".", "..") or len(sources) > 1
        full = _joined(workdir, target)
        # A folder's contents are copied, a file into a folder keeps its name.
        found.append(Copy(path, f"{full}/{path.name}" if into and path.is_file() else full))
    return found


def _variables(rest: str, where: str) -> dict[str, str]:
    if re.match(r"\w+=", rest):
        pairs = (word.partition("=") for word in shlex.split(rest))
        return {name: value for name, _, value in pairs}
    name, _, value = rest.partition(" ")
    if not name:
        raise ConfigError(f"{where} names no variable")
    return {name: value.strip()}


def _command(rest: str) -> str:
    return shlex.join(json.loads(rest)) if rest.startswith("[") else re.sub(r"^(--\w+=\S+\s+)+", "", rest)


def _joined(workdir: str, path: str) -> str:
    full = path if path.startswith("/") else f"{workdir.rstrip('/')}/{path}"
    parts: list[str] = []
    for part in full.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
