"""A command as the agent: phases, verdicts and rewards, without any program from a registry."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from slime_agl.errors import AgentError
from tests.conftest import flat
from tests.harness.doubles import Broken, Watched

CALL = """\
import json, os, sys, urllib.request
def post(url, body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["AGL_KEY"]}
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
def ask(text="hi"):
    body = {"model": os.environ["AGL_MODEL"], "messages": [{"role": "user", "content": text}]}
    return post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]["message"]["content"]
"""


@pytest.fixture
def program(tmp_path: Path):
    """`program(code)`: the command that runs Python code with `ask` and `post`."""

    def command(code: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(CALL + code)
        return f"{sys.executable} -I -S {path}"

    return command


SOLVE = "ask()\nopen('answer.txt', 'w').write('42')\nos.remove('wrong.txt')\n"


def test_the_work_of_a_command_is_graded_in_another_sandbox(run_harness, program, fake_sglang, row, watched):
    fake_sglang.say("ok")
    output = run_harness({"command": program(SOLVE)}, [row])
    assert [sample.reward for sample in flat(output.samples)] == [1.0]
    agents, graders = watched[0].specs
    assert (agents.network, graders.network) == ("gateway", "none")
    assert agents.endpoint.startswith("http://127.0.0.1:") and graders.endpoint == ""
    assert not watched[0].backend.open
    phases = {name.rpartition("/")[2] for name in output.metrics if "/harness/ms/" in name}
    assert phases | {"install"} == {"create", "install", "run", "seal", "collect", "grade"}


def test_wrong_work_is_rewarded_with_what_the_tests_say(run_harness, program, fake_sglang, row):
    fake_sglang.say("ok")
    output = run_harness({"command": program("ask()\nopen('answer.txt', 'w').write('41')\n")}, [row])
    assert [sample.reward for sample in flat(output.samples)] == [0.0]


def test_a_harbor_task_is_named_by_a_row(run_harness, program, fake_sglang, harbor):
    fake_sglang.say("ok")
    rows = [{"prompt": "see the task", "metadata": {"task": "answer"}}]
    output = run_harness({"command": program(SOLVE)}, rows, tasks={"harbor": str(harbor)})
    assert [sample.reward for sample in flat(output.samples)] == [1.0]


@pytest.mark.parametrize(
    ("code", "reward", "counted"),
    [
        ("ask()\n", 0.0, "no_diff"),
        (SOLVE + "sys.exit(3)\n", 1.0, "exits/exit_3"),
        (SOLVE + "import time\ntime.sleep(600)\n", 1.0, "timeouts"),
    ],
)
def test_what_befalls_a_program_is_counted_and_its_work_graded(
    run_harness, program, fake_sglang, row, watched, code, reward, counted
):
    fake_sglang.say("ok")
    output = run_harness({"command": program(code), "timeout_seconds": 4}, [row])
    assert [sample.reward for sample in flat(output.samples)] == [reward]
    assert output.metrics[f"rollout/agl/harness/{counted}"] == 1
    # Nothing was changed, so nothing was graded.
    assert len(watched[0].specs) == (1 if counted == "no_diff" else 2)


def test_a_failure_of_the_policy_can_be_made_an_error_of_the_agent(run_harness, program, fake_sglang, row):
    fake_sglang.answer_with(lambda request: "ok")
    agent = {"command": program(SOLVE + "print('last words')\nsys.exit(3)\n"), "on_exit": "fail"}
    with pytest.raises(AgentError, match="status 3"):
        run_harness(agent, [row], failure={"stall_groups": 1, "stall_seconds": 0})


@pytest.mark.parametrize("broken", [1, 99])
def test_a_sandbox_that_cannot_be_created_is_tried_again_and_never_a_reward_of_0(
    run_harness, program, fake_sglang, row, watched, monkeypatch, broken
):
    fake_sglang.answer_with(lambda request: "ok")
    make = Watched.__init__
    monkeypatch.setattr(
        Watched, "__init__", lambda self, backend: (make(self, backend), setattr(self, "broken", broken))[0]
    )
    given = {"sandbox": {"backend": "local", "retries": 1}, "failure": {"stall_groups": 1, "stall_seconds": 0}}
    if broken == 1:
        output = run_harness({"command": program(SOLVE)}, [row], **given)
        assert [sample.reward for sample in flat(output.samples)] == [1.0]
        assert len(watched[0].specs) == 3
    else:
        with pytest.raises(AgentError, match="sandbox_error"):
            run_harness({"command": program(SOLVE)}, [row], **given)


@pytest.mark.parametrize("fails", ["agent's sandbox", "grader's sandbox", "tests"])
def test_retries_of_sandboxes_and_of_executions_do_not_multiply(
    run_harness, run_rollout, program, fake_sglang, row, watched, monkeypatch, tmp_path, fails
):
    fake_sglang.answer_with(lambda request: "ok")
    runs, create = tmp_path / "runs", Watched.sandbox
    network = {"agent's sandbox": "gateway", "grader's sandbox": "none"}.get(fails)

    def sandbox(self, spec):
        made = create(self, spec)
        return Broken() if spec.network == network else made

    monkeypatch.setattr(Watched, "sandbox", sandbox)
    if fails == "tests":
        row["metadata"]["tests"] = "exit 1\n"
    given = {"sandbox": {"backend": "local", "retries": 2}, "failure": {"stall_groups": 1, "stall_seconds": 0}}
    with pytest.raises(AgentError, match="sandbox_error"):
        run_harness({"command": program(f"open({str(runs)!r}, 'a').write('.')\n" + SOLVE)}, [row], **given)
    per_attempt = Counter((spec.labels["attempt"], spec.network) for spec in watched[0].specs)
    assert set(per_attempt.values()) == ({3} if fails == "agent's sandbox" else {1, 3})
    attempts = len({attempt for attempt, _ in per_attempt})
    assert attempts <= len(run_rollout.data_source.taken), "an execution was run again for what had been tried again"


def test_a_program_that_is_missing_is_the_sandboxs_failure(run_harness, row):
    with pytest.raises(AgentError, match="not found"):
        run_harness({"command": "no-such-program"}, [row], failure={"stall_groups": 1, "stall_seconds": 0})


def test_tests_that_leave_no_reward_mask_the_execution(run_harness, program, fake_sglang, row):
    fake_sglang.answer_with(lambda request: "ok")
    row["metadata"]["tests"] = "echo crashed; exit 1\n"
    with pytest.raises(AgentError, match=r"left no /logs/verifier/reward\.txt"):
        run_harness({"command": program(SOLVE)}, [row], failure={"stall_groups": 1, "stall_seconds": 0})


def test_an_agent_of_agent_lightning_1_posts_its_reward(run_harness, program, fake_sglang, row):
    fake_sglang.say("ok")
    code = (
        "assert json.loads(os.environ['AGL_INPUT'])['prompt'] == os.environ['QUESTION']\n"
        "assert os.environ['AGL_OPENAI_BASE_URL'] == os.environ['OPENAI_BASE_URL']\n"
        "ask()\n"
        "done = post(os.environ['AGL_EVENT_URL'], {'event_type': 'reward', 'data': {'value': 0.25}})\n"
        "assert done['event_type'] == 'reward' and done['data'] == {'value': 0.25}, done\n"
    )
    output = run_harness({"command": program(code), "reward": "agent", "env": {"QUESTION": "prompt"}}, [row])
    assert [sample.reward for sample in flat(output.samples)] == [0.25]
    assert output.metrics["rollout/agl/posted_rewards"] == 1


def test_an_agent_that_is_graded_cannot_post_a_reward(run_harness, program, fake_sglang, row):
    fake_sglang.say("ok")
    code = (
        "import urllib.error\nask()\nassert 'AGL_EVENT_URL' not in os.environ\n"
        "try:\n    post(os.environ['OPENAI_BASE_URL'] + '/events', {'event_type': 'reward', 'data': {'value': 1}})\n"
        "except urllib.error.HTTPError as error:\n    open('status', 'w').write(str(error.code))\n"
    )
    row["metadata"]["tests"] = 'cp "$SANDBOX_ROOT/app/status" "$SANDBOX_ROOT/logs/verifier/reward.txt"\n'
    output = run_harness({"command": program(code)}, [row])
    assert [sample.reward for sample in flat(output.samples)] == [403.0]


def test_calls_during_grading_are_refused(run_harness, program, fake_sglang, row, watched, monkeypatch, tmp_path):
    fake_sglang.answer_with(lambda request: "ok")
    env, statuses = tmp_path / "env.json", []
    create = Watched.sandbox

    def call_first(self, spec):
        if spec.network == "none":
            given = json.loads(env.read_text())
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {given['AGL_KEY']}"}
            body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]}).encode()
            request = urllib.request.Request(f"{given['OPENAI_BASE_URL']}/chat/completions", body, headers)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            statuses.append(refused.value.code)
            refused.value.close()
        return create(self, spec)

    monkeypatch.setattr(Watched, "sandbox", call_first)
    code = SOLVE + f"json.dump(dict(os.environ), open({str(env)!r}, 'w'))\n"
    output = run_harness({"command": program(code)}, [row])
    assert statuses == [409] and [sample.reward for sample in flat(output.samples)] == [1.0]
    assert output.metrics["rollout/agl/late_requests"] == 1


def test_an_attempt_at_its_deadline_leaves_no_process_and_no_sandbox(
    run_harness, program, fake_sglang, row, watched, tmp_path
):
    fake_sglang.answer_with(lambda request: "ok")
    pids = tmp_path / "pids"
    code = (
        "import subprocess, time\nask()\n"
        "daemon = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} {{daemon.pid}} ')\ntime.sleep(600)\n"
    )
    section = {"runners": {"timeout_seconds": 3}, "failure": {"stall_groups": 1, "stall_seconds": 0}}
    with pytest.raises(AgentError, match="deadline"):
        run_harness({"command": program(code)}, [row], **section)
    assert not watched[0].backend.open
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) >= 2 and not [pid for pid in started if alive(pid)]


def test_an_execution_that_is_cancelled_leaves_no_process_and_no_sandbox(
    run_harness, program, fake_sglang, row, watched, tmp_path
):
    fake_sglang.answer_with(lambda request: "ok")
    first, told, pids = tmp_path / "first", tmp_path / "told", tmp_path / "pids"
    os.mkfifo(told)
    code = (
        "import subprocess, time\n"
        f"try: os.mkdir({str(first)!r})\n"
        f"except FileExistsError: open({str(told)!r}).read()\n"
        "else:\n"
        "    ask()\n"
        "    daemon = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"    open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{daemon.pid}}')\n"
        f"    open({str(told)!r}, 'w').close()\n"
        "    time.sleep(600)\n"
    )
    output = run_harness({"command": program(code + SOLVE)}, [row, row], over_sampling=2)
    assert [sample.reward for sample in flat(output.samples)] == [1.0]
    assert not watched[0].backend.open
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2 and not [pid for pid in started if alive(pid)]


def alive(pid: int) -> bool:
    """A process that is not a zombie has this pid."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_installs_what_it_needs(run_harness, program, fake_sglang, row):
    fake_sglang.say("ok")
    agent = {
        "command": program(SOLVE + "assert open(os.environ['SANDBOX_ROOT'] + '/ready').read() == 'yes'\n"),
        "install": 'printf yes > "$SANDBOX_ROOT/ready"',
        "on_exit": "fail",
    }
    output = run_harness(agent, [row])
    assert [sample.reward for sample in flat(output.samples)] == [1.0]


def test_a_row_names_its_own_harness(run_harness, program, fake_sglang, row):
    row["metadata"]["harness"] = "no_such"
    with pytest.raises(AgentError, match="no harness 'no_such'"):
        run_harness({"command": program(SOLVE)}, [row], failure={"stall_groups": 1, "stall_seconds": 0})


def test_an_agent_that_runs_out_of_context_is_truncated_and_graded(run_harness, program, fake_sglang, row):
    fake_sglang.answer_with(lambda request: "ok")
    code = (
        SOLVE + "import urllib.error\n"
        "said = [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'ok'}]\n"
        "body = {'model': 'm', 'messages': [*said, {'role': 'user', 'content': 'long ' * 60000}]}\n"
        "try:\n    post(os.environ['OPENAI_BASE_URL'] + '/chat/completions', body)\n"
        "except urllib.error.HTTPError:\n    sys.exit(1)\n"
    )
    output = run_harness({"command": program(code)}, [row])
    (sample,) = flat(output.samples)
    assert (sample.reward, sample.status.value) == (1.0, "truncated")
    assert output.metrics["rollout/agl/context_overflow"] == 1
    assert output.metrics["rollout/agl/harness/exits/exit_1"] == 1
