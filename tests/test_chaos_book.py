"""scripts/chaos detects each way in which a trained token can be wrong."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MARK = ["", "ro", "at", "row"]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("chaos_parts.book")


@pytest.fixture
def book(modules: Any, tmp_path: Path) -> Any:
    """Two turns of one attempt: [1, 2] is answered with [3, 4], which with [5] is answered with [6]."""
    first = {"mark": MARK, "shown": [1, 2], "output": [3, 4], "logprobs": [-1.0, -2.0], "fault": "", "lie": False}
    second = {**first, "shown": [1, 2, 3, 4, 5], "output": [6], "logprobs": [-3.0]}
    broken = {**first, "shown": [8], "output": [9], "logprobs": [-1.0], "fault": "cut", "lie": True}
    path = tmp_path / "record.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, second, broken)))
    return modules.Book.read([path])


@pytest.fixture
def sample(modules: Any) -> Any:
    return modules.Plain("row", [1, 2, 3, 4, 5, 6], [1, 1, 0, 1], [-1.0, -2.0, 0.0, -3.0], "ro", "at", 0)


def test_what_the_engine_sampled_is_right(book: Any, sample: Any) -> None:
    assert book.check(sample) == (3, [])
    assert book.injected == {"cut": 1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": [1, 2, 3, 7, 5, 6]}, "never sampled"),
        ({"tokens": [1, 9, 3, 4, 5, 6]}, "never sampled"),
        ({"mask": [1, 1, 1, 1]}, "never sampled"),
        ({"mask": [0, 1, 0, 1]}, "never sampled"),
        ({"mask": [1, 0, 0, 1]}, "only a part"),
        ({"logprobs": [-2.0, -1.0, 0.0, -3.0]}, "other logprobs"),
        ({"rollout": "ro-2"}, "not for ro-2"),
        ({"attempt": "at-2"}, "not for ro/at-2"),
        ({"prompt": "other row"}, "sampled for"),
        ({"tokens": [8, 9], "mask": [1], "logprobs": [-1.0]}, "broken"),
    ],
)
def test_each_wrong_token_is_found(book: Any, sample: Any, changes: dict[str, Any], words: str) -> None:
    _, faults = book.check(replace(sample, **changes))
    assert faults and words in faults[0]


def test_a_token_that_trains_twice_is_found(book: Any, sample: Any) -> None:
    assert book.check(sample)[1] == []
    assert "train 2 times" in book.check(sample)[1][0]
