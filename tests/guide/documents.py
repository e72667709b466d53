"""README, CONTRIBUTING and the guide's pages as blocks, for the tests of what stands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slime_agl.guide import pages

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md", *sorted(pages.FOLDER.glob("*.md"))]
# Pages made from docstrings and help, whose code is no example.
GENERATED = {"api.md", "commands.md", "configuration.md"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. line: of its fence, from 1."""

    path: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """All fenced blocks in these languages."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"(?ms)^```(\w*)\n(.*?)^```$", text):
            if match[1] in languages:
                found.append(Block(path, text[: match.start()].count("\n") + 1, match[1], match[2]))
    return found


def commands() -> Iterator[tuple[Block, list[str]]]:
    """The words of every command in a `bash` block, without comments; continued lines are one."""
    for block in blocks("bash"):
        for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield block, shlex.split(line, comments=True)


def prose(path: Path) -> str:
    """The text outside fenced blocks."""
    return re.sub(r"(?ms)^```.*?^```$", "", path.read_text(encoding="utf-8"))
