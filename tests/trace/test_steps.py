"""The files of one step, its own and its workers', read as one record."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slime_agl.errors import RecordError
from slime_agl.record.reading import read_run
from slime_agl.record.run import RecordedExecution, RecordWriter, worker_file
from tests.report.made import TEXTS, made

HEADER = {"name": "step", "step": 1, "agent": "a.b", "model": "m", "checkpoint": "/c", "stop_ids": [1], "agl": {}}
STEP = "step-000001.jsonl"

Write = Callable[..., Path]


def numbered(number: int, name: str, *, started: float = 0.0, trains: bool = True) -> RecordedExecution:
    """An execution of the Sample with this number."""
    one = made(name, started=started)
    mask = one.samples[0].mask if trains else array("b", [0] * len(one.samples[0].mask))
    return replace(one, samples=(replace(one.samples[0], index=number, rollout_id=number, mask=mask),))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of step 1: its own, or that of a worker."""

    def written(
        *executions: RecordedExecution,
        worker: int | None = None,
        took_part: Sequence[int] = (),
        texts: dict[int, bytes] = TEXTS,
        **header: Any,
    ) -> Path:
        path = tmp_path / STEP if worker is None else worker_file(tmp_path / STEP, worker)
        writer = RecordWriter(path, {**HEADER, **header}, lambda ids: [texts[i] for i in ids])
        for execution in executions:
            writer.write(execution)
        if took_part:
            writer.name_workers(took_part)
        writer.close()
        return path

    return written


def names(record: Any) -> list[str]:
    return [execution.ledger.rollout_id for execution in record.executions]


def test_executions_of_all_files_are_in_the_order_of_their_samples(write: Write, tmp_path: Path) -> None:
    write(numbered(4, "ro-e"))
    write(numbered(11, "ro-f"), numbered(0, "ro-a"), worker=10)
    write(numbered(3, "ro-d"), numbered(1, "ro-b", started=5), worker=2)
    write(numbered(1, "ro-c", started=7, trains=False), worker=3)
    (record,) = read_run(tmp_path)
    assert names(record) == ["ro-a", "ro-b", "ro-c", "ro-d", "ro-e", "ro-f"]
    assert (record.name, record.path, record.flaws()) == ("step-000001", tmp_path / STEP, [])
    assert "".join(record.texts([900, 1])) == "ask tok0"


def test_a_step_may_have_files_of_workers_only(write: Write, tmp_path: Path) -> None:
    write(numbered(1, "ro-b"), worker=1)
    (record,) = read_run(tmp_path)
    assert (names(record), record.name, record.header["step"]) == (["ro-b"], "step-000001", 1)
    write(numbered(0, "ro-a"), worker=0)
    (record,) = read_run(tmp_path)
    assert (names(record), record.name) == (["ro-a", "ro-b"], "step-000001")


def test_each_step_is_one_record_and_a_named_file_is_read_alone(write: Write, tmp_path: Path) -> None:
    own = write(numbered(1, "ro-b"), took_part=[0, 1])
    worker = write(numbered(0, "ro-a"), worker=0)
    for name in ("step-000002.jsonl", "eval-000001.jsonl", "step-000002.worker-0.jsonl"):
        (tmp_path / name).write_bytes(worker.read_bytes())
    for path in (own, worker):
        (record,) = read_run(path)
        assert (len(record.executions), record.flaws()) == (1, [])
        assert record.name == path.name.removesuffix(".jsonl")
    assert [record.name for record in read_run(tmp_path)] == ["eval-000001", "step-000001", "step-000002"]


def test_an_execution_in_two_files_counts_once_and_is_told(write: Write, tmp_path: Path) -> None:
    write(numbered(0, "ro-a"))
    write(numbered(0, "ro-a"), numbered(1, "ro-b"), worker=0)
    (record,) = read_run(tmp_path)
    assert names(record) == ["ro-a", "ro-b"]
    assert record.flaws() == [
        f"{tmp_path / STEP}: ro-a of step-000001.worker-0.jsonl is left out: {STEP} has it too",
    ]


@pytest.mark.parametrize("dead", [0, 1])
def test_what_ran_again_after_its_worker_ended_counts_once(write: Write, tmp_path: Path, dead: int) -> None:
    write(numbered(3, "ro-early", started=10), worker=dead)
    write(numbered(3, "ro-late", started=20), numbered(4, "ro-x", started=5), worker=1 - dead)
    (record,) = read_run(tmp_path)
    assert names(record) == ["ro-late", "ro-x"]
    (flaw,) = record.flaws()
    assert f"ro-early of step-000001.worker-{dead}.jsonl is left out: it ran again as ro-late" in flaw


def test_evaluations_may_repeat_the_number_of_a_sample(write: Write, tmp_path: Path) -> None:
    write(numbered(0, "ro-a", started=1), worker=0, name="eval")
    write(numbered(0, "ro-b", started=2), worker=1, name="eval")
    (record,) = read_run(tmp_path)
    assert (names(record), record.flaws()) == (["ro-a", "ro-b"], [])


@pytest.mark.parametrize(
    ("field", "other"),
    [("agent", "c.d"), ("checkpoint", "/other"), ("step", 2), ("name", "eval"), ("stop_ids", [2])],
)
def test_files_of_different_runs_are_refused_with_both_names(
    write: Write, tmp_path: Path, field: str, other: object
) -> None:
    write(numbered(0, "ro-a"), run="one")
    write(numbered(1, "ro-b"), worker=0, run="one")
    write(numbered(2, "ro-c"), worker=1, **{"run": "one", field: other})
    words = rf"{STEP} and .*step-000001.worker-1.jsonl are not of the same step of one run: {field} is .* in the first"
    with pytest.raises(RecordError, match=words):
        read_run(tmp_path)


def test_without_a_file_of_its_own_a_step_cannot_tell_which_run_counts(write: Write, tmp_path: Path) -> None:
    write(numbered(0, "ro-a"), worker=0, run="one")
    write(numbered(1, "ro-b"), worker=1, run="another")
    with pytest.raises(
        RecordError, match="worker-0.jsonl and .*worker-1.jsonl are not of the same step of one run: run"
    ):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("own", "old", "words"),
    [
        ({"run": "one"}, {"run": "zero"}, "it is of another run of this step; move it elsewhere"),
        ({"run": "one"}, {}, "it is of another run of this step; move it elsewhere"),
        ({"took_part": [0]}, {}, f"{STEP} names workers 0; it is of another run of this step"),
    ],
)
def test_what_an_earlier_run_left_of_the_step_does_not_count_and_is_told(
    write: Write, tmp_path: Path, own: dict[str, Any], old: dict[str, Any], words: str
) -> None:
    header = {name: value for name, value in own.items() if name == "run"}
    write(**own)
    write(numbered(0, "ro-a"), worker=0, **header)
    write(numbered(1, "ro-b"), worker=3, **old)
    (record,) = read_run(tmp_path)
    assert names(record) == ["ro-a"]
    assert record.flaws() == [f"{tmp_path / STEP}: step-000001.worker-3.jsonl is left out: {words}"]


def test_files_of_different_tokenizers_are_refused_with_both_names(write: Write, tmp_path: Path) -> None:
    write(numbered(0, "ro-a"), worker=0)
    write(numbered(1, "ro-b"), worker=1, texts={**TEXTS, 1: b"another"})
    words = r"worker-0.jsonl and .*worker-1.jsonl were written with different tokenizers: token 1 is .*another"
    with pytest.raises(RecordError, match=words):
        read_run(tmp_path)


def test_a_file_that_a_worker_truncated_is_told_and_the_rest_is_read(write: Write, tmp_path: Path) -> None:
    write(numbered(0, "ro-a"), worker=0)
    torn = write(numbered(1, "ro-b"), numbered(2, "ro-c"), worker=1)
    torn.write_bytes(torn.read_bytes()[:-9])
    with (tmp_path / "step-000001.worker-0.jsonl").open("ab") as file:
        file.write(b"{}\n")
    (record,) = read_run(tmp_path)
    assert names(record) == ["ro-a", "ro-b"]
    skipped, unfinished = record.flaws()
    assert skipped.startswith(f"{tmp_path / 'step-000001.worker-0.jsonl'}: line 4 is skipped (KeyError")
    assert unfinished.startswith(f"{torn}: an unfinished last line of ")


@pytest.mark.parametrize("text", [b"", b'{"format": "slime_'])
def test_a_file_without_a_header_is_told_unless_the_step_has_no_other(
    write: Write, tmp_path: Path, text: bytes
) -> None:
    empty = tmp_path / "step-000001.worker-0.jsonl"
    empty.write_bytes(text)
    with pytest.raises(RecordError, match=rf"worker-0.jsonl holds no whole line \({len(text)} bytes\)"):
        read_run(tmp_path)
    write(numbered(1, "ro-b"), took_part=[0])
    (record,) = read_run(tmp_path)
    assert names(record) == ["ro-b"]
    assert record.flaws() == [
        f"{empty} holds no whole line ({len(text)} bytes); the run ended before the header was written"
    ]


def test_a_missing_file_of_a_worker_that_took_part_is_told(write: Write, tmp_path: Path) -> None:
    write(numbered(0, "ro-a"), took_part=[0, 2])
    write(numbered(1, "ro-b"), worker=0)
    (record,) = read_run(tmp_path)
    (flaw,) = record.flaws()
    assert "step-000001.worker-2.jsonl is missing" in flaw and "copy it here from the machine it ran on" in flaw
    assert names(record) == ["ro-a", "ro-b"]


def test_a_step_none_of_whose_workers_left_a_file_is_told(write: Write, tmp_path: Path) -> None:
    write(numbered(0, "ro-a"), took_part=[0])
    (record,) = read_run(tmp_path)
    assert names(record) == ["ro-a"] and "worker-0.jsonl is missing" in record.flaws()[0]


def test_numbers_of_workers_that_cannot_be_are_skipped(write: Write, tmp_path: Path) -> None:
    own = write(numbered(0, "ro-a"))
    with own.open("ab") as file:
        file.write(b'{"workers": [-1]}\n{"workers": ["x"]}\n{"workers": 3}\n')
    (record,) = read_run(tmp_path)
    assert names(record) == ["ro-a"] and len(record.flaws()) == 3 and record.workers == ()
