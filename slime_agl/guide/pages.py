"""The pages of the guide, in the order in which a newcomer would read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slime_agl.errors import SlimeAglError, closest

FOLDER = Path(__file__).parent
# Pages that this does not name come last, by name.
ORDER = (
    "agents",
    "rewards",
    "samples",
    "async",
    "workers",
    "harnesses",
    "trainer",
    "methods",
    "evaluation",
    "metrics",
    "flags",
    "troubleshooting",
    "reliability",
    "configuration",
    "commands",
    "api",
    "changelog",
)


class NoPage(SlimeAglError, LookupError):
    """The guide has no page of that name."""

    boundary = "guide"


@dataclass(frozen=True, slots=True)
class Page:
    """name: of its file, without `.md`. text: Markdown, which begins with a line `# Title` and a paragraph."""

    name: str
    text: str

    @property
    def title(self) -> str:
        return next((line[2:] for line in self.text.splitlines() if line.startswith("# ")), self.name)

    @property
    def summary(self) -> str:
        """The first sentence of the first paragraph, '' without one."""
        plain = re.sub(r"<!--.*?-->", "", self.text, flags=re.DOTALL)
        paragraphs = (" ".join(part.split()) for part in plain.split("\n\n"))
        first = next((part for part in paragraphs if part and part[0].isalpha()), "")
        return re.split(r"(?<=[.:])\s", first)[0].rstrip(".:")

    @property
    def headings(self) -> list[str]:
        return [line.lstrip("# ") for _, line in _prose(self.text) if line.startswith("#")]


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a search found. number: in the page, from 1. heading: of the section that it is in."""

    page: str
    number: int
    heading: str
    text: str


def names() -> list[str]:
    """The names of all pages, in reading order."""
    found = {path.stem for path in FOLDER.glob("*.md")}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def pages() -> list[Page]:
    """All pages, in reading order."""
    return [page(name) for name in names()]


def page(name: str) -> Page:
    """Read a page by its name, in any case.

    Raises:
        NoPage: there is none; names the nearest, and the pages with a heading that contains the name.
    """
    known = names()
    if name.lower() not in known:
        raise NoPage(f"there is no page {name!r}.{_instead(name, known)}")
    return Page(name.lower(), (FOLDER / f"{name.lower()}.md").read_text(encoding="utf-8"))


def search(words: str) -> Iterator[Line]:
    """Find the lines that contain `words`, in any case; in reading order."""
    wanted = words.casefold()
    for one in pages():
        heading, headings = one.title, dict(_prose(one.text))
        for number, text in enumerate(one.text.splitlines(), 1):
            if headings.get(number, "").startswith("#"):
                heading = text.lstrip("# ")
            if wanted in text.casefold():
                yield Line(one.name, number, heading, text.strip())


def _instead(name: str, known: list[str]) -> str:
    if near := closest(name.lower(), known):
        return near
    told = [one.name for one in pages() if any(name.casefold() in heading.casefold() for heading in one.headings)]
    if told:
        return f" It is a heading in: {', '.join(told)}"
    return f" Its pages: {', '.join(known)}. To search them: slime-agl guide --search {name}"


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) of the lines outside fenced blocks, from 1."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line
