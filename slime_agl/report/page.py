"""Render a recorded run as one self-contained HTML page: data, style and script inline, nothing fetched."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import orjson
from jinja2 import Environment, PackageLoader

from slime_agl import __version__
from slime_agl.errors import ConfigError
from slime_agl.record.run import Record, RecordedExecution
from slime_agl.report.fate import TurnFate, fates
from slime_agl.report.summary import Pair, row


def write_page(path: Path, pairs: Sequence[Pair], *, title: str) -> None:
    """Write the page. Tokens are packed arrays, drawn when an execution is opened.

    Raises:
        ConfigError: the file cannot be written.
    """
    page = render_page(pairs, title=title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def render_page(pairs: Sequence[Pair], *, title: str) -> str:
    loader = PackageLoader("slime_agl.report", "assets")
    environment = Environment(loader=loader, autoescape=True)
    assets = {name: loader.get_source(environment, name)[0] for name in ("page.css", "page.js")}
    return environment.get_template("page.html").render(
        title=title,
        version=__version__,
        style=assets["page.css"],
        script=assets["page.js"],
        data=_embedded(_data(pairs)),
    )


def _embedded(data: object) -> str:
    """JSON for a script element: no text in it can close the element."""
    return orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS).decode().replace("<", "\\u003c")


def _data(pairs: Sequence[Pair]) -> dict[str, object]:
    """All executions share one table of token texts, and refer to its entries by position."""
    places: dict[tuple[int, bytes], int] = {}
    executions = []
    for record, execution in pairs:
        executions.append(_execution(record, execution, places))
    return {"tokens": [[i, _text(text)] for i, text in places], "executions": executions}


def _text(text: bytes) -> str | list[int]:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return list(text)


def _execution(record: Record, execution: RecordedExecution, places: dict[tuple[int, bytes], int]) -> dict[str, object]:
    def placed(ids: Iterable[int]) -> str:
        keys = [(i, record.tokens.get(i, f"<{i}>".encode())) for i in ids]
        return _packed(array("i", [places.setdefault(key, len(places)) for key in keys]))

    entry = row(record, execution).as_dict()
    return entry | {
        "task": execution.task
        if isinstance(execution.task, str)
        else orjson.dumps(execution.task, default=str).decode(),
        "error": execution.error,
        "rewards": execution.rewards,
        "spans": [
            {**span, "attributes": {k: str(v) for k, v in span["attributes"].items()}} for span in execution.spans
        ],
        "tree": [_turn(execution, fate, placed) for fate in fates(execution)],
    }


def _turn(execution: RecordedExecution, fate: TurnFate, placed: Callable[[Iterable[int]], str]) -> dict[str, object]:
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
