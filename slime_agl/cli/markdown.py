"""Markdown as a terminal shows it, without loss: rich's own cuts long names in tables and long lines of code."""

from __future__ import annotations

import io
from typing import ClassVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

WIDEST = 100
LONGEST_NAME = 34
STYLES = Theme({"markdown.code": "cyan", "markdown.h1": "bold", "markdown.h2": "bold underline", "markdown.h3": "bold"})


def rendered(text: str, width: int | None = None) -> str:
    """The text with colours. width: by default this terminal's, at most WIDEST."""
    width = min(Console().width, WIDEST) if width is None else width
    console = Console(file=io.StringIO(), force_terminal=True, theme=STYLES, width=width, legacy_windows=False)
    with console.capture() as captured:
        console.print(_Markdown(text))
    return captured.get()


class _Heading(Heading):
    """At the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        if self.tag != "h1":
            yield Text("")
        yield self.text


class _Code(CodeBlock):
    """Indented; lines that do not fit are folded."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Text(str(self.text).rstrip(), style="cyan", overflow="fold", no_wrap=False)
        yield Padding(code, (0, 0, 0, 4))


class _Table(TableElement):
    """Columns as wide as their longest names, where there is room; what does not fit is folded, never cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [] if self.header is None or self.header.row is None else [c.content for c in self.header.row.cells]
        rows = [] if self.body is None else [[cell.content for cell in row.cells] for row in self.body.rows]
        columns = [[cell.plain for cell in column] for column in zip(head, *rows, strict=True)]
        table = Table(box=box.SIMPLE_HEAVY)
        for title, width in zip(head, _widths(columns, options.max_width - 3 * len(head) - 1), strict=True):
            table.add_column(title, overflow="fold", width=width)
        for row in rows:
            table.add_row(*row)
        yield table


def _widths(columns: list[list[str]], room: int) -> list[int]:
    """Share `room` among columns: what the longest word of each needs, then by the length of its texts."""
    natural = [max(1, *map(len, texts)) for texts in columns]
    if sum(natural) <= room:
        return natural
    least = [
        min(LONGEST_NAME, max(len(word) for text in texts for word in (text.split() or [""]))) for texts in columns
    ]
    if sum(least) > room:
        return [max(1, one * room // sum(least)) for one in least]
    left, wanted = room - sum(least), [(most - one) ** 0.5 for most, one in zip(natural, least, strict=True)]
    return [one + int(left * more / sum(wanted)) for one, more in zip(least, wanted, strict=True)]


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "table_open": _Table,
    }
