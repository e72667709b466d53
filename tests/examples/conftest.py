"""Run an example as its agl.yaml describes, with its own stand-in behind the scripted engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples_on_the_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in [name for name in sys.modules if name.partition(".")[0] == "workers"]:
        monkeypatch.delitem(sys.modules, name)  # the tests of that name


@pytest.fixture
def run_example(run_rollout: Any, fake_sglang: Any, token_exact: Any) -> Callable[..., Any]:
    """`run_example(name, luck, count)`: one step over the first rows, every token checked; the output of `generate`.

    luck: 0.0 answers best, 0.99 worst. answer: a function of the request, in place of the stand-in. without: keys of
    agl.yaml to leave out. rows: in place of
    the first `count`. Further arguments go to `run_rollout`.
    """

    def run(name: str, luck: float = 0.0, count: int = 2, **overrides: Any) -> Any:
        local = load_local()
        given = local.settings(EXAMPLES / name)
        if program := overrides.pop("harness", ""):
            given = local.with_program(given, program, EXAMPLES / name)
            fake_sglang.context_length = overrides["rollout_max_context_len"] = local.CONTEXT
        lines = (EXAMPLES / name / "train.jsonl").read_text(encoding="utf-8").splitlines()
        rows = overrides.pop("rows", None) or [json.loads(line) for line in lines[:count]]
        fake_sglang.answer_with(overrides.pop("answer", None) or local.responder(EXAMPLES / name, lambda index: luck))
        without = ("agent", *overrides.pop("without", ()))
        section = {key: value for key, value in given["agl"].items() if key not in without}
        path = "custom_reward_post_process_path"
        more = {path: given[path], "rollout_max_response_len": given["rollout_max_response_len"], **overrides}
        output = run_rollout(given["agl"]["agent"], rows, agl=section, **more)
        assert token_exact(fake_sglang, output.samples) == output.metrics["rollout/agl/trained_tokens"] > 0
        return output

    return run


def load_local() -> Any:
    import local

    assert Path(local.__file__) == EXAMPLES / "local.py", sys.path
    return local
