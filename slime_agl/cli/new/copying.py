"""Copy an example under another name, so that it stands alone."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import slime_agl
from slime_agl.errors import ConfigError, closest

# What all examples share; a copy has its own.
SHARED = ("common.sh", "local.py")
# Files that an example has: one that slime's own driver trains, and one that a Trainer of Agent Lightning trains.
KINDS = (("run.sh", "agl.yaml", "train.jsonl"), ("train.py", "agent.py"))
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
TEXTS = frozenset({".py", ".sh", ".md", ".yaml", ".json", ".jsonl", ".toml", ".txt"})


@dataclass(frozen=True, slots=True)
class Copied:
    """A copied example.

    agent: as `agl.agent` names it, or the mapping of a program; None if the example's own train.py names it.
    """

    folder: Path
    agent: str | dict[str, Any] | None


def example_names(examples: Path) -> list[str]:
    """Names of the folders that can be copied."""
    return sorted(
        readme.parent.name
        for readme in examples.glob("*/README.md")
        if any(all((readme.parent / name).is_file() for name in kind) for kind in KINDS)
    )


def examples_directory() -> Path:
    """Return the clone's examples.

    Raises:
        ConfigError: the package does not stand in a clone of the repository.
    """
    examples = Path(slime_agl.__file__).parents[1] / "examples"
    if not example_names(examples):
        raise ConfigError(f"{examples} does not exist; examples are in a clone of the repository, install it with -e")
    return examples


def copy_example(example: str, name: str, parent: Path) -> Copied:
    """Copy an example to `parent`/`name`: its name becomes the new one in every text, and what examples share is added.

    Raises:
        ConfigError: there is no such example, the name cannot be a Python module's, or the folder exists.
    """
    examples = examples_directory()
    if example not in (names := example_names(examples)):
        raise ConfigError(f"there is no example {example!r}.{closest(example, names)} Examples: {', '.join(names)}")
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a Python module; use lower-case letters, digits and underscores"
        )
    folder = parent / name
    if folder.exists():
        raise ConfigError(f"{folder} exists; choose another name, or move it away")
    try:
        shutil.copytree(examples / example, folder, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        with_driver = (folder / "run.sh").exists()
        for file in SHARED if with_driver else ():
            shutil.copy(examples / file, folder / file)
        for file in folder.rglob("*"):
            if file.is_file() and file.suffix in TEXTS and file.name not in SHARED:
                _rename_in(file, example, name)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    if not with_driver:
        return Copied(folder, None)
    section = yaml.safe_load((folder / "agl.yaml").read_text(encoding="utf-8"))["agl"]
    return Copied(folder, section["agent"])


def _rename_in(file: Path, old: str, new: str) -> None:
    """Replace an example's name where it names the module, the agent, the folder or the README."""
    text = file.read_text(encoding="utf-8")
    module, agent = rf"(?<![\w.-]){old}(?=\.(?:agent|data|stand_in)\b)", rf"(?<=\.agent:){old}\b|(?<=def ){old}(?=\()"
    title, path = rf"\A# {old}$", rf"(?<=EXAMPLES/){old}(?=/)"
    renamed = re.sub(f"{module}|{agent}|{path}", new, text)
    renamed = re.sub(title, f"# {new}", renamed, flags=re.MULTILINE)
    if renamed != text:
        file.write_text(renamed, encoding="utf-8")
