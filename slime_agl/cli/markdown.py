"""Markdown as a terminal shows it, without loss: rich's own cuts long names in tables and long lines of code."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

WIDEST = 100
# Letters of a name in a table that are kept together, as far as there is room.
NAMES = (34, 28, 24, 20)
INDENT = 4
# Spaces that fill a line, before the codes that end its colours.
_FILL = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)
STYLES = Theme({"markdown.code": "cyan", "markdown.h1": "bold", "markdown.h2": "bold underline", "markdown.h3": "bold"})


def rendered(text: str, width: int | None = None) -> str:
    """The text with colours. width: by default this terminal's, at most WIDEST."""
    width = min(Console().width, WIDEST) if width is None else width
    console = Console(file=io.StringIO(), force_terminal=True, theme=STYLES, width=width, legacy_windows=False)
    with console.capture() as captured:
        console.print(_Markdown(text))
    return _FILL.sub(r"\1", captured.get())


class _Heading(Heading):
    """At the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        if self.tag != "h1":
            yield Text("")
        yield self.text


class _Code(CodeBlock):
    """Indented; lines that do not fit are folded, commands so that they can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = str(self.text).rstrip().splitlines()
        if self.lexer_name == "bash":
            lines = [part for line in lines for part in _continued(line, options.max_width - INDENT)]
        code = Text("\n".join(lines), style="cyan", overflow="fold", no_wrap=False)
        yield Padding(code, (0, 0, 0, INDENT))


def _continued(command: str, room: int) -> list[str]:
    """A command that is too long: its comment on a line before it, and the rest on continued lines."""
    if len(command) <= room:
        return [command]
    command, _, comment = command.partition("  # ")
    told = textwrap.wrap(comment.strip(), room, initial_indent="# ", subsequent_indent="# ")
    parts = textwrap.wrap(
        command.rstrip(), room - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return told + [f"{part} \\" for part in parts[:-1]] + parts[-1:]


class _Table(TableElement):
    """Columns as wide as their longest names; without room for these, row by row. Nothing is cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [] if self.header is None or self.header.row is None else [c.content for c in self.header.row.cells]
        rows = [] if self.body is None else [[cell.content for cell in row.cells] for row in self.body.rows]
        columns = [[cell.plain for cell in column] for column in zip(head, *rows, strict=True)]
        widths = _widths(columns, options.max_width - 3 * len(head) - 1)
        if widths is None:
            yield from _stacked([title.plain for title in head], rows)
            return
        table = Table(box=box.SIMPLE_HEAVY)
        for title, width in zip(head, widths, strict=True):
            table.add_column(title, overflow="fold", width=width)
        for row in rows:
            table.add_row(*row)
        yield table


def _stacked(head: Sequence[str], rows: Iterable[Sequence[Text]]) -> RenderResult:
    """Each row as its first cell, and the others below it after their titles."""
    for first, *others in rows:
        yield Text("")
        yield first
        for title, cell in zip(head[1:], others, strict=True):
            if cell.plain.strip():
                yield Padding(Text.assemble((f"{title}: " if title else "", "dim"), cell), (0, 0, 0, INDENT))


def _widths(columns: list[list[str]], room: int) -> list[int] | None:
    """Share `room` among columns: what the longest word of each needs, then by the length of its texts.

    None without room for these words.
    """
    natural = [max(1, *map(len, texts)) for texts in columns]
    if sum(natural) <= room:
        return natural
    words = [max(len(word) for text in texts for word in (text.split() or [""])) for texts in columns]
    least = next((fit for limit in NAMES if sum(fit := [min(limit, one) for one in words]) <= room), None)
    if least is None:
        return None
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
