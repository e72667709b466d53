"""A run is followed as its files grow: each byte is read once, whatever writes it and however it ends."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from slime_agl.record.following import IDENTIFYING, Follower
from slime_agl.record.run import RecordedExecution, RecordWriter, worker_file
from slime_agl.report.live import StepFigures, figures, seen
from tests.report.made import TEXTS, made


def opened(path: Path, step: int = 0, run: str = "a", name: str = "step", agent: str = "a.b") -> RecordWriter:
    header = {"name": name, "step": step, "run": run, "agent": agent, "stop_ids": []}
    writer = RecordWriter(path, header, lambda ids: [TEXTS[i] for i in ids])
    weakref.finalize(writer, writer._file.close)
    return writer


def execution(number: int, reward: float = 1.0, **facts) -> RecordedExecution:
    one = made(rollout_id=f"ro-{number}", reward=reward, started=float(number), seconds=1.0, **facts)
    sample = replace(one.samples[0], index=number, rollout_id=number, group_index=number // 2, reward=reward)
    return replace(one, samples=(sample,))


def follow(path: Path, steps: int = 20) -> Follower:
    return Follower(path, seen, steps=steps)


def told(follower: Follower) -> list[StepFigures]:
    return [figures(step) for step in follower.poll()]


def test_what_is_added_is_read_and_nothing_else(tmp_path: Path):
    path = tmp_path / "step-000000.jsonl"
    writer = opened(path)
    for number in range(50):
        writer.write(execution(number))
    follower = follow(tmp_path)
    assert told(follower)[0].executions == 50
    before, size = follower.bytes_read, path.stat().st_size
    assert told(follower)[0].executions == 50 and follower.bytes_read == before
    writer.write(execution(50, reward=0.0))
    assert told(follower)[0].executions == 51
    assert follower.bytes_read - before <= path.stat().st_size - size + IDENTIFYING
    assert not follower.poll()[0].changed


def test_a_torn_line_waits_for_its_end(tmp_path: Path):
    path = tmp_path / "step-000000.jsonl"
    writer = opened(path)
    writer.write(execution(0))
    whole = path.read_bytes()
    writer.write(execution(1, reward=0.0))
    added = path.read_bytes()[len(whole) :]
    follower = follow(tmp_path)
    for cut in (0, 1, len(added) // 2, len(added) - 1):
        path.write_bytes(whole + added[:cut])
        (step,) = follower.poll()
        assert (figures(step).executions, step.own.torn) == (1, cut)
    path.write_bytes(whole + added)
    (step,) = follower.poll()
    assert (figures(step).executions, step.own.torn, follower.flaws()) == (2, 0, [])


def test_a_file_without_a_whole_header_is_not_a_step_yet(tmp_path: Path):
    assert told(follow(tmp_path / "later")) == []
    writer = opened(tmp_path / "step-000000.jsonl")
    header = (tmp_path / "step-000000.jsonl").read_bytes()
    (tmp_path / "step-000000.jsonl").write_bytes(header[:20])
    follower = follow(tmp_path)
    assert told(follower) == [] and follower.flaws() == []
    (tmp_path / "step-000000.jsonl").write_bytes(header)
    assert [one.executions for one in told(follower)] == [0]
    writer.close()


def test_workers_files_are_one_step_and_an_execution_counts_once(tmp_path: Path):
    own = tmp_path / "step-000000.jsonl"
    writer = opened(own)
    first, second = opened(worker_file(own, 0)), opened(worker_file(own, 1))
    first.write(execution(0))
    follower = follow(tmp_path)
    assert told(follower)[0].executions == 1
    second.write(execution(1, reward=0.0))
    second.write(execution(0))  # the same one
    again = execution(0, reward=0.5)
    second.write(replace(again, ledger=replace(again.ledger, rollout_id="ro-again"), started=9.0))  # of the same Sample
    writer.name_workers([0, 1, 2])
    (step,) = told(follower)
    assert (step.executions, step.reward) == (2, 0.25)
    assert step.missing == ("step-000000.worker-2.jsonl",)


def test_what_an_earlier_run_left_does_not_count(tmp_path: Path):
    own = tmp_path / "step-000000.jsonl"
    opened(worker_file(own, 0), run="earlier").write(execution(0))
    opened(own).write(execution(1))
    assert [one.executions for one in told(follow(tmp_path))] == [1]


def test_a_run_that_begins_anew_in_the_same_place_is_read_anew(tmp_path: Path):
    path = tmp_path / "step-000000.jsonl"
    writer = opened(path)
    writer.write(execution(0))
    follower = follow(tmp_path)
    assert told(follower)[0].executions == 1
    writer = opened(path, run="b")
    for number in range(1, 4):
        writer.write(execution(number))
    assert path.stat().st_size > follower.bytes_read / 2
    assert told(follower)[0].executions == 3


def test_only_the_newest_steps_are_read_in_the_order_they_were_made(tmp_path: Path):
    for number in range(30):
        opened(tmp_path / f"step-{number:06d}.jsonl", number).write(execution(number))
    opened(tmp_path / "eval-000029.jsonl", 29, name="eval").write(execution(99))
    follower = follow(tmp_path, steps=3)
    names = [one.name for one in told(follower)]
    assert names == ["step-000028", "step-000029", "eval-000029"]
    size = (tmp_path / "step-000029.jsonl").stat().st_size
    assert follower.bytes_read < 4 * (size + IDENTIFYING)
    opened(tmp_path / "step-000030.jsonl", 30)
    assert [one.name for one in told(follower)] == ["step-000029", "eval-000029", "step-000030"]


def test_malformed_lines_and_foreign_files_are_told(tmp_path: Path):
    path = tmp_path / "step-000000.jsonl"
    writer = opened(path)
    writer.write(execution(0))
    writer._file.write(b'{"execution": {}}\nnot json\n')
    (tmp_path / "step-000001.jsonl").write_text('{"no": "header"}\n')
    follower = follow(tmp_path)
    assert [one.executions for one in told(follower)] == [1]
    flaws = follower.flaws()
    assert "step-000000.jsonl: 2 malformed lines are skipped" in flaws
    assert any("step-000001.jsonl has format" in words for words in flaws)
    writer.write(execution(1))
    assert told(follower)[0].executions == 2


def test_figures_of_a_step(tmp_path: Path):
    writer = opened(tmp_path / "step-000000.jsonl")
    for number, reward in enumerate((1.0, 1.0, 0.0, 1.0)):
        writer.write(execution(number, reward))
    writer.write(execution(4, reward=0.0, failure="deadline", error="Traceback\nTimeoutError: late\n"))
    writer.write(execution(6, unused="filtered"))
    (step,) = told(follow(tmp_path))
    assert (step.executions, step.delivered) == (6, 5)
    assert step.reward == pytest.approx(0.75)  # a failure's placeholder is no reward
    assert (step.groups, step.flat) == (2, 1)
    assert (step.failed, step.last_error) == ({"deadline": 1}, "TimeoutError: late")
    assert (step.sampled, step.trained) == (18, 12)
    assert step.untrained == {"deadline": 3, "filtered": 3}
    json.dumps(step.as_dict())
