"""Make untrusted text (from models, agents, records, logs) safe to print: terminals obey control characters.

An escape sequence can write the clipboard, retitle the window or hide lines; a bidirectional override reorders what is
read. Both are printed as escapes, and Rich never parses such text as markup.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING

import click
import orjson

if TYPE_CHECKING:
    from rich.text import Text

    from slime_agl.record.run import Record

# C0 except tab and newline, DEL and C1, surrogates, line and paragraph separators, and invisible format characters
# (bidirectional controls, tags, byte order marks) except the two joiners, which scripts and emoji need.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Escape everything that a terminal would obey, as `\\x1b` or `\\u202e`."""
    return _UNSAFE.sub(_escape, text)


def safe_text(value: object, style: str = "") -> Text:
    """Return the value as Rich text: escaped, and never parsed as markup."""
    from rich.text import Text  # keeps help and Tab completion fast

    return Text(visible(str(value)), style)


def json_line(value: object, *, indent: bool = False) -> str:
    """Serialize to one line of JSON, or an indented object, with terminal controls escaped."""
    options = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        text = orjson.dumps(value, option=options).decode()
    except TypeError:  # invalid Unicode, or integers beyond 64 bits
        text = json.dumps(value, indent=2 if indent else None, default=str)
    return _UNSAFE.sub(_json_escape, text) + "\n"


def echo(text: str, *, fg: str | None = None) -> None:
    """Print one message to stderr, in the given colour."""
    click.secho(visible(text), err=True, fg=fg)


def print_skipped(record: Record) -> None:
    """Report on stderr the parts of a record that were not read."""
    for words in record.flaws():
        echo(words)


def make_log_visible() -> None:
    """Escape log messages, which quote agents' errors, unless logging has been configured."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter())


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
