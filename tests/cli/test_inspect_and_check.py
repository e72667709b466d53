"""The commands that inspect runs, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import agentlightning as agl
import openai
import pytest
from click.testing import CliRunner

from slime_agl.cli.main import main
from slime_agl.errors import AgentError
from slime_agl.testing.agents import failing_agent, tool_agent
from slime_agl.testing.paths import importable
from slime_agl.testing.tokenizer import save_tiny_checkpoint


@agl.rollout
async def planner_and_coder(task: Any, llm: Any) -> None:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="dummy", max_retries=0) as ai:
        for model in ("planner", "coder"):
            messages: list[Any] = [{"role": "user", "content": model}]
            await ai.chat.completions.create(model=model, messages=messages)
    agl.emit_reward({"team": 0.5, "coder": 0.25}, primary_key="team")


@pytest.fixture
def run_dir(fake_sglang, run_rollout, tmp_path) -> Path:
    fake_sglang.call_tool("add", {"a": 1, "b": 2}).say("It is 3.")
    run_rollout(tool_agent(), ["1 + 2?"], agl={"record_dir": str(tmp_path / "run")})
    return tmp_path / "run"


def invoke(*words: str):
    return CliRunner().invoke(main, list(words), env={"COLUMNS": "120"})


def test_a_run_is_a_table_with_sums(run_dir):
    shown = invoke("inspect", str(run_dir))
    assert shown.exit_code == 0
    assert "step-000000" in shown.stdout
    assert "1 execution, mean reward 1.000" in shown.stdout


def test_figures_are_json_lines(run_dir):
    (line,) = invoke("inspect", str(run_dir), "--json").stdout.splitlines()
    row = json.loads(line)
    assert (row["turns"], row["segments"], row["reward"], row["masked"]) == (2, 1, 1.0, 0)


def test_an_execution_is_shown_token_by_token(run_dir):
    name = json.loads(invoke("inspect", str(run_dir), "--json").stdout)["name"]
    shown = invoke("inspect", str(run_dir), "--execution", name[:6])
    assert '{"name": "add", "arguments": {"a": 1, "b": 2}}' in shown.stdout
    assert "continues 0" in shown.stdout and "reward primary 1 after 2 turns" in shown.stdout
    spans = shown.stdout.partition("spans")[2]
    assert "turn 0" in spans and "gen_ai" not in spans, "what the turns above tell is not told twice"


def test_an_execution_may_be_called_as_the_table_calls_it(run_dir):
    name = json.loads(invoke("inspect", str(run_dir), "--json").stdout)["name"]
    shown = invoke("inspect", str(run_dir), "--execution", name.removeprefix("ro-"))
    assert shown.exit_code == 0 and name in shown.stdout


@pytest.mark.parametrize("columns", [80, 140])
def test_a_failure_is_named_in_a_terminal_of_any_width_and_has_no_reward(columns, fake_sglang, run_rollout, tmp_path):
    with pytest.raises(AgentError):
        run_rollout(failing_agent(), ["1 + 2?"], agl={"record_dir": str(tmp_path)})
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path)], env={"COLUMNS": str(columns)}).stdout
    row = next(line for line in shown.splitlines() if "step-000000" in line)
    assert "agent_error" in row and " – " in row
    assert "no reward" in shown


def test_that_nothing_failed_is_said_and_no_page_is_written(run_dir, tmp_path):
    shown = invoke("inspect", str(run_dir), "--failed", "--html", str(tmp_path / "run.html"))
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "none of the 1 executions" in shown.stderr and not (tmp_path / "run.html").exists()


def test_an_unknown_execution_is_named(run_dir):
    shown = invoke("inspect", str(run_dir), "--execution", "nobody")
    assert shown.exit_code == 2
    assert "no execution of" in shown.stderr and "'nobody'" in shown.stderr


def test_a_torn_line_is_noticed_on_stderr(run_dir):
    (file,) = run_dir.glob("*.jsonl")
    with file.open("ab") as out:
        out.write(b'{"execution": {"led')
    shown = invoke("inspect", str(run_dir), "--json")
    assert "an unfinished last line of 19 bytes was skipped" in shown.stderr
    assert len(shown.stdout.splitlines()) == 1


def test_the_page_is_written(run_dir, tmp_path):
    shown = invoke("inspect", str(run_dir), "--html", str(tmp_path / "out" / "run.html"))
    assert shown.exit_code == 0 and shown.stdout == ""
    assert "1 executions" in shown.stderr
    assert (tmp_path / "out" / "run.html").read_text().startswith("<!doctype html>")


def check(tmp_path: Path, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the command starts threads and a router, and ends with its own exit status."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n} + 2?"}) + "\n" for n in range(4)))
    checkpoint = save_tiny_checkpoint(tmp_path / "checkpoint")
    command = [
        sys.executable,
        "-m",
        "slime_agl.cli.main",
        "check",
        "--data",
        str(data),
        "--model",
        str(checkpoint),
        "--rows",
        "2",
    ]
    return subprocess.run(
        [*command, *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "110"},
    )


def test_a_trainable_agent_passes(tmp_path):
    pytest.importorskip("sglang_router")
    (tmp_path / "talks.py").write_text("from slime_agl.testing.agents import chat_agent\nagent = chat_agent(turns=2)\n")
    done = check(tmp_path, "--agent", "talks.agent", "--say", "three", "--say", "four", "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in body["findings"]}
    assert body["passed"]
    assert found["trained tokens are the engine's own"]["verdict"] == "pass"
    assert found["rewards differ within a group"]["verdict"] == "look"
    assert "none failed" in found["agents end well"]["words"]
    again = found["encoding again would show"]
    assert again["verdict"] == "look" and "cannot tell" in again["words"], "what --say says is encoded as usual"


ONLY_IN_A_WORKER = """
import __main__
from slime_agl.testing.agents import chat_agent
assert __main__.__spec__.name == "slime_agl.workers.child", "this module is to be imported in workers only"
agent = chat_agent(turns=2)
"""


def test_an_agent_is_checked_in_worker_processes(tmp_path):
    pytest.importorskip("sglang_router")
    (tmp_path / "only_there.py").write_text(ONLY_IN_A_WORKER)
    words = (
        "--agent",
        "only_there.agent",
        "--say",
        "three",
        "--say",
        "four",
        "--json",
        "--record",
        str(tmp_path / "run"),
    )
    done = check(tmp_path, *words, "--workers", "2", timeout=300)
    assert done.returncode == 0, done.stderr
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert (found["workers"]["verdict"], found["workers"]["words"]) == ("pass", "agents ran in 2 workers")
    assert found["trained tokens are the engine's own"]["verdict"] == "pass"
    assert found["nothing is left at the engine"]["verdict"] == "pass"
    assert len(invoke("inspect", str(tmp_path / "run"), "--json").stdout.splitlines()) == 4


def test_an_agent_of_the_script_cannot_be_checked_in_workers(tmp_path):
    pytest.importorskip("sglang_router")
    done = check(tmp_path, "--agent", "__main__.agent", "--say", "three", "--workers", "1")
    assert done.returncode == 2 and done.stdout == ""
    assert "agl.agent is '__main__.agent'" in done.stderr and "move it into a module" in done.stderr


def test_an_agent_that_breaks_fails_with_its_traceback(tmp_path):
    pytest.importorskip("sglang_router")
    (tmp_path / "broken.py").write_text(
        "import agentlightning as agl\n@agl.rollout\nasync def agent(task, llm):\n"
        "    raise RuntimeError('the tool broke')\n"
    )
    done = check(tmp_path, "--agent", "broken.agent", "--say", "three")
    assert done.returncode == 1, done.stderr
    assert "the tool broke" in done.stdout and "cannot be trained like this" in done.stdout


def test_the_doctor_names_what_is_wrong_and_how_to_mend_it(tmp_path):
    (tmp_path / "agl.yaml").write_text(f"agl: {{agent: nowhere.to_be_found, record_dir: {tmp_path / 'run'}}}\n")
    done = CliRunner().invoke(
        main, ["doctor", "--config", str(tmp_path / "agl.yaml"), "--model", str(tmp_path), "--json"]
    )
    body = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in body["findings"]}
    assert done.exit_code == 1 and not body["healthy"]
    assert found["agentlightning"]["verdict"] == "pass"
    assert found["config"]["verdict"] == "pass"
    assert found["agl.agent"]["verdict"] == "fail" and "nowhere" in found["agl.agent"]["words"]
    assert found["model"]["verdict"] == "fail"


@pytest.fixture
def eval_dir(fake_sglang, run_rollout, tmp_path) -> Path:
    fake_sglang.answer_with(lambda request: "ok")
    section = {"record_dir": str(tmp_path / "run"), "evaluation": {"success": 0.5}}
    with importable(planner_and_coder) as agent:
        run_rollout(agent, ["a", "b", "c"], n_samples=2, evaluation=True, agl=section, eval_reward_key="team")
    return tmp_path / "run"


def test_evaluations_have_pass_and_mean_by_dataset_and_agent(eval_dir):
    lines = [
        json.loads(line) for line in invoke("inspect", str(eval_dir), "--evaluations", "--json").stdout.splitlines()
    ]
    assert [(line["dataset"], line["agent"]) for line in lines] == [("rows", name) for name in ("", "planner", "coder")]
    whole, planner, coder = (line["figures"] for line in lines)
    assert whole["mean@2"]["value"] == planner["mean@2"]["value"] == 0.5 and coder["mean@2"]["value"] == 0.25
    assert whole["pass@1"]["value"] == 1.0 and coder["pass@2"]["value"] == 0.0 and coder["pass@2"]["high"] > 0.5
    assert {line["prompts"] for line in lines} == {3} and {line["executions"] for line in lines} == {6}
    shown = invoke("inspect", str(eval_dir)).stdout
    assert "evaluations (95 % intervals)" in shown and "mean@2 0.250 (0.250 to 0.250)" in shown


def test_a_run_without_evaluations_says_so(run_dir):
    shown = invoke("inspect", str(run_dir), "--evaluations")
    assert (shown.exit_code, shown.stdout) == (0, "") and "no recorded evaluation" in shown.stderr
    assert "evaluations" not in invoke("inspect", str(run_dir)).stdout
