"""Render a recorded run as one self-contained HTML page: data, style and script inline, nothing fetched.

The page holds an index of all executions, one table of token texts, and each execution in an element of its own, which
is parsed when it is opened; so a page opens in the time of its index.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader

from slime_agl import __version__
from slime_agl.errors import ConfigError
from slime_agl.record.run import Record, RecordedExecution
from slime_agl.record.said import Said
from slime_agl.report.credit import Credit, Credits, credits_of
from slime_agl.report.fate import TurnFate, fates
from slime_agl.report.summary import Pair, row
from slime_agl.trace.segments import Segment

# In the order in which one needs what another defines.
SCRIPTS = ("data", "overview", "list", "tree", "conversation", "tokens", "execution", "compare", "page")
LONGEST_GIST = 160

Place = Callable[[Iterable[int]], str]


def write_page(path: Path, pairs: Sequence[Pair], *, title: str) -> None:
    """Write the page.

    Raises:
        ConfigError: the file cannot be written.
    """
    page = render_page(pairs, title=title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def render_page(pairs: Sequence[Pair], *, title: str) -> str:
    loader = PackageLoader("slime_agl.report", "assets")
    environment = Environment(loader=loader, autoescape=True)
    texts = _Texts()
    credits = _credits(pairs)
    index, bodies = [], []
    for (record, execution), credit in zip(pairs, credits, strict=True):
        index.append(_entry(record, execution))
        bodies.append(_embedded(_body(execution, credit, texts.of(record))))
    return environment.get_template("page.html").render(
        title=title,
        version=__version__,
        style=loader.get_source(environment, "page.css")[0],
        script="".join(loader.get_source(environment, f"{name}.js")[0] for name in SCRIPTS),
        index=_embedded(index),
        tokens=_embedded(texts.table()),
        bodies=bodies,
    )


def _embedded(data: object) -> str:
    """JSON for a script element: no text in it can close the element."""
    return orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS).decode().replace("<", "\\u003c")


def _credits(pairs: Sequence[Pair]) -> list[Credits]:
    """The credit of each pair; groups are judged whole, also where `pairs` has only some of their executions."""
    by_record = {id(record): record for record, _ in pairs}
    found = {
        id(execution): credit
        for record in by_record.values()
        for execution, credit in zip(record.executions, credits_of(record), strict=True)
    }
    return [found.get(id(execution)) or Credits() for _, execution in pairs]


class _Texts:
    """Token texts of all records in one table, whose entries executions refer to by position."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, bytes], int] = {}

    def of(self, record: Record) -> Place:
        def placed(ids: Iterable[int]) -> str:
            keys = [(i, record.tokens.get(i, f"<{i}>".encode())) for i in ids]
            return _packed(array("i", [self._places.setdefault(key, len(self._places)) for key in keys]))

        return placed

    def table(self) -> list[list[object]]:
        return [[i, _text(text)] for i, text in self._places]


def _text(text: bytes) -> str | list[int]:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return list(text)


def _entry(record: Record, execution: RecordedExecution) -> dict[str, object]:
    """What the overview and the list need."""
    return row(record, execution).as_dict() | {
        "gist": _gist(execution.task),
        "dataset": execution.dataset,
        "unused": execution.unused,
    }


def _gist(task: object) -> str:
    """A task in a line: its texts."""
    if isinstance(task, dict):
        task = " · ".join(value for value in task.values() if isinstance(value, str)) or task
    text = task if isinstance(task, str) else orjson.dumps(task, default=str).decode()
    line = " ".join(text[: 4 * LONGEST_GIST].split())
    return line if len(line) <= LONGEST_GIST else line[:LONGEST_GIST] + "…"


def _body(execution: RecordedExecution, credits: Credits, placed: Place) -> dict[str, object]:
    parts = execution.segments
    trains_in = {index: at for at, part in enumerate(parts) for index in part.trained}
    tools: list[object] = []
    return {
        "task": execution.task if isinstance(execution.task, str) else _pretty(execution.task),
        "error": execution.error,
        "refused": execution.refused,
        "rewards": execution.rewards,
        "spans": [
            {**span, "attributes": {k: str(v) for k, v in span["attributes"].items()}} for span in execution.spans
        ],
        "parts": [_part(at, part, execution, credits) for at, part in enumerate(parts)],
        "tree": [
            _turn(execution, fate, placed)
            | {
                "part": trains_in.get(fate.turn.index),
                "credit": _credit(credits.turns.get(fate.turn.index)),
                "said": _said(execution.said.get(fate.turn.index), tools),
            }
            for fate in fates(execution)
        ],
        "tools": tools,
    }


def _pretty(task: object) -> str:
    return orjson.dumps(task, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def _part(at: int, part: Segment, execution: RecordedExecution, credits: Credits) -> dict[str, object]:
    sample = next((one for one in execution.samples if one.segment == at), None)
    return {
        "turns": [turn.index for turn in part.turns],
        "trained": sorted(part.trained),
        "tokens": part.trained_tokens,
        "status": sample.status if sample else "",
        "removed": sample is None or sample.removed or bool(execution.unused),
        "index": sample.index if sample else None,
        "credit": _credit(credits.segments.get(at)),
    }


def _credit(credit: Credit | None) -> list[float | None] | None:
    return None if credit is None else [credit.value, credit.earned, credit.advantage]


def _said(said: Said | None, tools: list[object]) -> list[Any] | None:
    """Messages of a turn; equal tool lists stand once, in `tools`."""
    if said is None:
        return None
    number = None
    if said.tools is not None:
        number = next((at for at, known in enumerate(tools) if known is said.tools or known == said.tools), len(tools))
        if number == len(tools):
            tools.append(said.tools)
    return [said.added, said.reply, number]


def _turn(execution: RecordedExecution, fate: TurnFate, placed: Place) -> dict[str, object]:
    turn = fate.turn
    return {
        "parent": turn.parent,
        "glue": placed(turn.new_ids),
        "ids": placed(turn.output_ids()),
        "logprobs": _packed(array("f", turn.output_logprobs())),
        "trained": base64.b64encode(fate.trained.tobytes()).decode(),
        "weights": [[part.weight_version, len(part.ids)] for part in turn.parts if len(part.ids)],
        "cached": sum(part.cached_tokens for part in turn.parts),
        "finish": turn.finish,
        "fork": turn.fork,
        "why": fate.why,
        "at": turn.started - execution.started,
        "seconds": turn.ended - turn.started,
        "engine": turn.engine_seconds,
        "model": turn.model,
    }


def _packed(values: array) -> str:
    """Base64 of the native, little-endian bytes, which browsers read as typed arrays."""
    return base64.b64encode(values.tobytes()).decode("ascii")
