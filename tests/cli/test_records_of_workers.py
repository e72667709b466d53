"""The commands on a directory in which each worker wrote a file of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slime_agl.cli.main import main
from slime_agl.rollout import shutdown

WORKERS = 2


@pytest.fixture
def whole(fake_sglang: Any, run_rollout: Any, tmp_path: Path) -> Path:
    """A record in one file."""
    fake_sglang.answer_with(lambda request: f"{len(request.input_ids)} ids")
    section = {"record_dir": str(tmp_path / "whole")}
    try:
        run_rollout("tests.cli.rerun_agents.two_turns", ["one", "two and", "three and more"], agl=section)
    finally:
        shutdown()
    return tmp_path / "whole"


@pytest.fixture
def split(whole: Path, tmp_path: Path) -> Path:
    """The same record, its executions spread over files of workers."""
    (own,) = whole.glob("*.jsonl")
    header, *lines = own.read_text().splitlines(keepends=True)
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / own.name).write_text(header)
    texts = [line for line in lines if line.startswith('{"tokens"')]
    executions = [line for line in lines if line not in texts]
    for number in range(WORKERS):
        file = tmp_path / "split" / f"{own.stem}.worker-{number}.jsonl"
        file.write_text("".join([header, *texts, *executions[number::WORKERS]]))
    return tmp_path / "split"


def invoke(*words: str) -> Any:
    done = CliRunner().invoke(main, list(words), env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    return done


def test_figures_are_those_of_one_file(whole: Path, split: Path) -> None:
    there = [json.loads(line) for line in invoke("inspect", str(whole), "--json").stdout.splitlines()]
    here = invoke("inspect", str(split), "--json")
    assert [json.loads(line) for line in here.stdout.splitlines()] == sorted(there, key=lambda row: row["index"])
    assert len(there) == 3 and here.stderr == ""
    (one,) = split.glob("*.worker-1.jsonl")
    assert len(invoke("inspect", str(one), "--json").stdout.splitlines()) == 1


def test_an_execution_of_any_worker_is_shown_and_on_the_page(split: Path, tmp_path: Path) -> None:
    names = [json.loads(line)["name"] for line in invoke("inspect", str(split), "--json").stdout.splitlines()]
    for name in names:
        assert "ids<|im_end|>" in invoke("inspect", str(split), "--execution", name).stdout
    invoke("inspect", str(split), "--html", str(tmp_path / "run.html"))
    page = (tmp_path / "run.html").read_text()
    assert all(page.count(f'"name":"{name}"') == 1 for name in names)


def test_a_rerun_is_of_every_worker_and_each_execution_once(split: Path) -> None:
    done = invoke("rerun", str(split), "--trust", "--json")
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["step"], one["verdict"], one["matched"]) for one in outcomes] == [("step-000000", "same", 2)] * 3
    assert len({one["name"] for one in outcomes}) == 3


def test_what_a_killed_worker_left_is_told_by_both_commands(split: Path) -> None:
    (torn,) = split.glob("*.worker-1.jsonl")
    torn.write_bytes(torn.read_bytes()[:-5])
    for words in (["inspect", str(split), "--json"], ["rerun", str(split), "--trust", "--json"]):
        done = invoke(*words)
        assert len(done.stdout.splitlines()) == 2
        assert f"{torn}: an unfinished last line of " in done.stderr
