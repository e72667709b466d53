"""Text of models, agents, records and logs, made safe to print: a terminal obeys control characters.

An escape sequence can write the clipboard, retitle the window or hide lines; a bidirectional override makes text read
otherwise than it stands. Both are shown as escapes. Nor is such text ever read as markup of Rich's.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from rich.text import Text

    from slime_agl.record.run import Record

# C0 but tab and newline, DEL and C1, surrogates, line and paragraph separators, all that formats and shows nothing
# (bidirectional controls, tags, byte order marks) but the two joiners, which scripts and emoji need.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """The text with everything that a terminal obeys written out, as `\\x1b` or `\\u202e`."""
    return _UNSAFE.sub(_written_out, text)


def shown(text: Any, style: str = "") -> Text:
    """The text for Rich, in which no markup is read."""
    from rich.text import Text  # help and completion by Tab need not wait for it

    return Text(visible(str(text)), style)


def json_line(value: Any, *, indent: bool = False) -> str:
    """One line of JSON, or an indented object, in which no character is left that a terminal obeys."""
    options = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        text = orjson.dumps(value, option=options).decode()
    except TypeError:  # text that is no Unicode, numbers beyond 64 bits
        text = json.dumps(value, indent=2 if indent else None, default=str)
    return _UNSAFE.sub(_json_escape, text) + "\n"


def echo(text: str, **how: Any) -> None:
    """Print one message to stderr, in a style of click's."""
    click.secho(visible(text), err=True, **how)


def tell_what_was_skipped(record: Record) -> None:
    """Say on stderr what of a record was not read."""
    for words in record.skipped:
        echo(f"{record.path}: {words}")
    if record.torn:
        echo(f"{record.path}: an unfinished last line of {record.torn} bytes was skipped")


def make_log_visible() -> None:
    """Show log messages, which quote what agents raise, as `visible` does, where nobody has set up logging."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter())


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
