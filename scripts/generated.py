"""Everything in README.md and the guide that is made from the code; `scripts/readme` writes it.

A generated part stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import road_picture
from msgspec import Struct

from slime_agl.cli.main import main
from slime_agl.cli.reference import reference
from slime_agl.config import table
from slime_agl.guide import pages
from slime_agl.guide.public import MODULES
from slime_agl.preflight import estimators, weights

ROOT = Path(__file__).parents[1]
GUIDE = pages.FOLDER
# Columns of code blocks in the guide, which a terminal of 100 columns shows unbroken; and of docstring lines that are
# longer, because the next word did not fit.
WIDTH, BROKEN_AT = 94, 96
# A line of a table: a word, and what it means in a second column. It begins something, and so does `parameter: ...`.
TABULAR = re.compile(r"(\s*\S+ {2,})\S")
BEGINS = re.compile(r"\s*\S+ {2,}\S|\w+(, \w+)*: ")


def api() -> str:
    """Markdown: every public name of every public module, with its signature and docstring."""
    return "\n".join(part for name in MODULES for part in _module(name))


PARTS: dict[Path, dict[str, Callable[[], str]]] = {
    GUIDE / "configuration.md": {"keys": table},
    GUIDE / "commands.md": {"commands": lambda: reference(main)},
    GUIDE / "api.md": {"api": api},
    GUIDE / "rewards.md": {"estimators": estimators.table, "weights": weights.table},
}
PICTURES = {ROOT / ".github" / f"road-{theme}.svg": theme for theme in road_picture.THEMES}


def made() -> dict[Path, str]:
    """The whole text of each file as it should be."""
    texts = {path: _filled(path.read_text(encoding="utf-8"), parts) for path, parts in PARTS.items()}
    return texts | {path: road_picture.svg(theme) for path, theme in PICTURES.items()}


def _filled(text: str, parts: dict[str, Callable[[], str]]) -> str:
    for name, make in parts.items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        assert start and end, f"there is no place for the generated part {name}"
        text = before + start + make() + end + after
    return text


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"## {name}\n\n{_doc(module)}"
    for public in module.__all__:
        yield from _name(public, getattr(module, public))


def _name(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"### {name}{_signature(value)}\n\n{_doc(value)}" if callable(value) else f"### {name}\n"
        return
    yield f"### class {name}{_signature(value)}\n\n{_doc(value)}"
    for method, function in vars(value).items():
        shown = function.fget if isinstance(function, property) else getattr(function, "__func__", function)
        if method.startswith("_") or not inspect.isfunction(shown) or not shown.__doc__:
            continue
        signature = "" if isinstance(function, property) else _signature(shown)
        yield f"#### {name}.{method}{signature}\n\n{_doc(shown)}"


def _doc(value: Any) -> str:
    return f"```text\n{_narrowed(inspect.cleandoc(value.__doc__))}\n```\n"


def _narrowed(text: str) -> str:
    """Fit a docstring into WIDTH columns. Lines that were broken for their length are joined before; others stay."""
    lines: list[str] = []
    broken = False  # the last of them, for its length
    for line in text.splitlines():
        before = lines[-1] if lines else ""
        indent, outer, column = _indent(line), _indent(before), TABULAR.match(before)
        goes_on = broken and (indent == outer + 4 or indent == outer == 0) and not BEGINS.match(line)
        if line.strip() and (goes_on or (column and indent == column.end(1))):
            lines[-1] = f"{before} {line.strip()}"
        else:
            lines.append(line)
        broken = len(line) > BROKEN_AT
    return "\n".join(_wrapped(line) if len(line) > WIDTH else line for line in lines)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _wrapped(line: str) -> str:
    column = TABULAR.match(line)
    indent = _indent(line)
    hanging = " " * (column.end(1) if column else indent + 4 if indent else 0)
    return textwrap.fill(line, WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)


class _Written(str):
    """An annotation as it is written in the source, without quotes."""

    __repr__ = str.__str__


def _signature(value: Any) -> str:
    """The parameters as they are written; '' if there are none to show, as of exceptions."""
    if inspect.isclass(value) and issubclass(value, Struct):
        return f"({', '.join(value.__struct_fields__)})"
    if inspect.isclass(value) and (issubclass(value, BaseException) or "__init__" not in vars(value)):
        return ""
    if inspect.isclass(value) and dataclasses.is_dataclass(value):
        return f"({', '.join(field.name for field in dataclasses.fields(value) if field.init)})"
    found = inspect.signature(value)
    parameters = [
        one.replace(
            annotation=_Written(one.annotation) if isinstance(one.annotation, str) else one.annotation,
            default=_Written("...") if inspect.isfunction(one.default) else one.default,
        )
        for one in found.parameters.values()
        if one.name != "self"
    ]
    result = found.return_annotation
    result = _Written(result) if isinstance(result, str) and not inspect.isclass(value) else inspect.Signature.empty
    return str(inspect.Signature(parameters, return_annotation=result))


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
