"""Untrusted records: invalid content is named and skipped; nothing in a record exhausts or hangs the reader."""

from __future__ import annotations

import base64
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_agl.errors import RecordError
from slime_agl.record import reading, steps
from slime_agl.record.reading import read_record
from slime_agl.record.run import RecordWriter
from tests.report.made import TEXTS, made

HEADER = {"name": "step", "step": 0, "agent": "a.b", "model": "m", "checkpoint": "", "stop_ids": [1], "agl": {}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A record of three executions."""
    writer = RecordWriter(tmp_path / "step-000000.jsonl", HEADER, lambda ids: [TEXTS[i] for i in ids])
    for number in range(3):
        writer.write(
            made(f"ro-{number}", masked_turns=1, spans=({"name": "s", "at": 0, "seconds": 1, "attributes": {}},))
        )
    writer.close()
    return tmp_path / "step-000000.jsonl"


def edited(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the second execution."""
    lines = path.read_bytes().splitlines()
    entry = orjson.loads(lines[3])
    change(entry["execution"])
    lines[3] = orjson.dumps(entry)
    path.write_bytes(b"\n".join(lines) + b"\n")


def names(record: Any) -> list[str]:
    return [execution.ledger.rollout_id for execution in record.executions]


HOSTILE: dict[str, bytes] = {
    "not JSON": b"{",
    "no object": b"[1]",
    "empty": b"",
    "another thing": b"{}",
    "invalid UTF-8": b'{"execution": "\xff\xfe"}',
    "a lone surrogate": b'{"execution": "\\ud800"}',
    "a huge number": b'{"execution": {"started": 1e999}}',
    "nested deeply": b"[" * 100_000 + b"]" * 100_000,
    "tokens that are a number": b'{"tokens": 5}',
    "a token whose text is a size": b'{"tokens": [[1, 1000000000000]]}',
    "a token that is no byte": b'{"tokens": [[1, [256]]]}',
    "a token whose id is text": b'{"tokens": [["1", "x"]]}',
    "NUL": b"\x00" * 100,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_line_is_named_and_skipped(path: Path, name: str) -> None:
    lines = path.read_bytes().splitlines()
    lines.insert(3, HOSTILE[name])
    path.write_bytes(b"\n".join(lines) + b"\n")
    record = read_record(path)
    assert names(record) == ["ro-0", "ro-1", "ro-2"] and len(record.skipped) == 1
    assert record.skipped[0].startswith("line 4 is skipped (") and len(record.skipped[0]) < 300


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a mask of a terabyte": lambda one: one["samples"][0].update(mask=[0, 1 << 40]),
    "a mask that goes backwards": lambda one: one["samples"][0].update(mask=[3, -3]),
    "a mask of floats": lambda one: one["samples"][0].update(mask=[0.5]),
    "a segment before the first": lambda one: one["samples"][0].update(segment=-1),
    "a removed of 1": lambda one: one["samples"][0].update(removed=1),
    "a task too deep to write again": lambda one: one.update(task=deep(230)),
    "a row too deep": lambda one: one.update(row={"a": deep(230)}),
    "a row that is a list": lambda one: one.update(row=[1]),
    "an error that is a number": lambda one: one.update(error=5),
    "a failure that is a list": lambda one: one.update(failure=["x"]),
    "seconds that are text": lambda one: one.update(seconds="1"),
    "a reward that is text": lambda one: one.update(rewards=[[0, {"x": "y"}]]),
    "a span without a name": lambda one: one["spans"][0].pop("name"),
    "a span whose attributes are text": lambda one: one["spans"][0].update(attributes="x"),
    "counters of text": lambda one: one.update(counters={"joined_retries": "x"}),
    "an id that is a number": lambda one: one["ledger"].update(rollout_id=7),
    "a model that is an object": lambda one: one["ledger"]["turns"][0].update(model={}),
    "a weight version that is a number": lambda one: one["ledger"]["turns"][0]["parts"][0].update(weight_version=1),
    "a turn that is its own parent": lambda one: one["ledger"]["turns"][0].update(parent=0),
    "an index beyond all numbers": lambda one: one["ledger"]["turns"][0].update(index=2**63),
    "odd base64": lambda one: one["ledger"]["turns"][0].update(new_ids="====="),
    "half an id": lambda one: one["ledger"]["turns"][0].update(new_ids=base64.b64encode(b"abc").decode()),
    "experts of a type that is none": lambda one: one["ledger"]["turns"][0]["parts"][0].update(experts=[0, 1, "u", ""]),
    "experts of no width": lambda one: one["ledger"]["turns"][0]["parts"][0].update(experts=[0, 0, "B", ""]),
    "top-p sets that end nowhere": lambda one: one["ledger"]["turns"][0]["parts"][0].update(top_p=["", ""]),
    "a try that is text": lambda one: one.update(earlier=["x"]),
    "too many turns": lambda one: one["ledger"].update(turns=[{}] * 20_001),
    "turns that are an object": lambda one: one["ledger"].update(turns={}),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_execution_with_a_wrong_field_is_named_and_skipped(path: Path, name: str) -> None:
    edited(path, WRONG[name])
    record = read_record(path)
    assert names(record) == ["ro-0", "ro-2"]
    assert len(record.skipped) == 1 and record.skipped[0].startswith("line 4 is skipped (")


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(place for name, one in inner for place in places(one, (*above, name)))]


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_at_any_place_is_read_or_skipped_and_then_shown(path: Path, data: st.DataObject) -> None:
    from slime_agl.report.page import render_page
    from slime_agl.report.summary import readable

    whole = path.read_bytes()
    odd = [None, True, -1, 1 << 62, 1e300, "x", "\x1b", [], {}, [[]], {"a": {}}, deep(180)]

    def change(one: dict[str, Any]) -> None:
        *above, name = data.draw(st.sampled_from(places(one)[1:]))
        for step in above:
            one = one[step]
        one[name] = data.draw(st.sampled_from(odd))

    try:
        edited(path, change)
        record = read_record(path)
        assert (
            names(record)[0] == "ro-0" and names(record)[-1] == "ro-2" and len(names(record)) + len(record.skipped) == 3
        )
        pairs, unreadable = readable([record])
        assert len(pairs) + len(unreadable) == len(record.executions)
        render_page(pairs, title="run")
    finally:
        path.write_bytes(whole)


def test_a_line_longer_than_any_execution_is_skipped_without_being_held(path: Path, monkeypatch: Any) -> None:
    longest = max(map(len, path.read_bytes().splitlines())) + 2
    monkeypatch.setattr(reading, "LONGEST_LINE", longest)
    lines = path.read_bytes().splitlines()
    lines.insert(3, b"x" * (5 * longest + 7))
    path.write_bytes(b"\n".join(lines) + b"\n" + b"y" * 11)
    record = read_record(path)
    assert names(record) == ["ro-0", "ro-1", "ro-2"] and record.torn == 11
    assert record.skipped == (f"line 4 is skipped (ValueError: it is empty, or has more than {longest} bytes)",)


def test_many_bad_lines_are_told_in_few(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{\n" * 1000)
    record = read_record(path)
    assert len(record.skipped) == steps.MOST_LISTED + 1 and record.skipped[-1] == "980 more lines are skipped"


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step-000000.jsonl")
    (tmp_path / "endless.jsonl").symlink_to("/dev/zero")
    for name in ("step-000000.jsonl", "endless.jsonl"):
        with pytest.raises(RecordError, match="is not a regular file"):
            read_record(tmp_path / name)


def test_a_big_record_is_read_line_by_line(path: Path) -> None:
    """The mask that `array.extend` of a list would build is bytes here, and ids are what they were."""
    record = read_record(path)
    assert record.executions[0].samples[0].mask == array("b", [1, 1, 1, 0, 0, 0, 0])
