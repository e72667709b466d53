"""Columns of data rows reach the task of the row's Sample, or the run stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime_agl.errors import ConfigError
from slime_agl.executor.columns import Columns, DataFile, data_files
from slime_agl.executor.tasks import task_builder
from slime_agl.host import RolloutArgs, Sample, default_args

ROWS = [
    {"input": "fix a", "label": 1, "image": "one", "tests": ["t1"]},
    {"input": "fix b", "label": 1, "image": "two"},
    {"input": "fix b again", "label": 1, "image": "two again"},
    {"input": "fix a", "label": 2, "image": "three"},
    {"input": "same", "image": "four", "metadata": {"id": 4}},
    {"input": "same", "image": "five", "metadata": {"id": 5}},
    {"input": "twice", "image": "six"},
    {"input": "twice", "image": "six"},
]


def columns(tmp_path: Path, rows: list[dict[str, Any]], *names: str, rewritten: bool = False) -> Columns:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Columns(names, [DataFile(str(data), "input", "label", "metadata", rewritten)])


@pytest.mark.parametrize(
    ("prompt", "label", "metadata", "found"),
    [
        ("fix a", 1, {}, {"image": "one", "tests": ["t1"]}),
        ("fix b", 1, {}, {"image": "two"}),
        ("fix b again", 1, {}, {"image": "two again"}),
        ("fix a", 2, {"added": True}, {"image": "three"}),
        ("same", None, {"id": 5, "added": 1}, {"image": "five"}),
        ("twice", None, {}, {"image": "six"}),
    ],
)
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_row_is_found_by_what_slime_keeps_of_it(tmp_path, prompt, label, metadata, found, rewritten):
    told = f"<|user|>{prompt}<|assistant|>" if rewritten else prompt
    sample = Sample(prompt=told, label=label, metadata=metadata)
    assert columns(tmp_path, ROWS, "image", "tests", rewritten=rewritten).of(sample) == found


def test_rows_that_cannot_be_told_apart_stop_the_run(tmp_path):
    rows = [{"input": "x", "image": "one"}, {"input": "x", "image": "two"}]
    with pytest.raises(ConfigError, match=r"row 1 of .* and row 2 of .* the same prompt"):
        columns(tmp_path, rows, "image").of(Sample(prompt="x"))


def test_a_row_that_is_not_there_and_a_column_that_no_row_has_are_named(tmp_path):
    with pytest.raises(ConfigError, match="the row of sample 3 is not in"):
        columns(tmp_path, ROWS, "image").of(Sample(prompt="else", index=3))
    with pytest.raises(ConfigError, match=r"'images', which no row has. Did you mean 'image'"):
        columns(tmp_path, ROWS, "images").of(Sample(prompt="fix a", label=1))


def test_columns_join_the_task_and_can_be_renamed(tmp_path):
    own = columns(tmp_path, ROWS, "image")
    sample = Sample(prompt="same", metadata={"id": 4, "image": "shadowed"})
    assert task_builder(None, columns(tmp_path, ROWS[:4], "image"))(Sample(prompt="fix b", label=1, metadata={})) == {
        "image": "two",
        "prompt": "fix b",
        "label": 1,
    }
    own = columns(tmp_path, ROWS, "image")
    assert task_builder(None, own)(sample)["image"] == "four"
    assert task_builder({"box": "image"}, own)(sample) == {"box": "four"}


def test_the_files_are_those_of_training_and_evaluation():
    args = default_args(prompt_data="train.jsonl", label_key="answer", eval_prompt_data=["held", "held.jsonl"])
    assert [(file.path, file.prompt, file.label) for file in data_files(RolloutArgs.read(args))] == [
        ("train.jsonl", "input", "answer"),
        ("held.jsonl", "input", "answer"),
    ]
