"""Tasks: Harbor directories, Dockerfiles, rows; and the command that tries them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slime_agl.cli.main import main
from slime_agl.errors import ConfigError
from slime_agl.harness.dockerfile import Copy, Run, read_dockerfile
from slime_agl.harness.harbor import find_tasks, read_task
from slime_agl.harness.task import task_of


def dockerfile(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(text)
    return folder / "Dockerfile"


def test_a_dockerfile_is_replayed_in_order(tmp_path):
    path = dockerfile(
        tmp_path,
        "# syntax\nFROM python:3.12-slim AS base\nENV A=1 B='two words'\nENV C three words\nWORKDIR /srv\n"
        'WORKDIR app\nCOPY project/ .\nCOPY one.txt two.txt data/\nRUN pip install \\\n  pytest\nRUN ["echo", "a b"]\n'
        'CMD ["true"]\n',
    )
    (tmp_path / "project").mkdir()
    (tmp_path / "one.txt").write_text("1")
    (tmp_path / "two.txt").write_text("2")
    recipe = read_dockerfile(path)
    assert (recipe.image, recipe.workdir) == ("python:3.12-slim", "/srv/app")
    assert recipe.env == {"A": "1", "B": "two words", "C": "three words"}
    assert recipe.steps == [
        Copy(tmp_path / "project", "/srv/app"),
        Copy(tmp_path / "one.txt", "/srv/app/data/one.txt"),
        Copy(tmp_path / "two.txt", "/srv/app/data/two.txt"),
        Run("pip install    pytest", "/srv/app"),
        Run("echo 'a b'", "/srv/app"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("FROM a\nFROM b\n", "several stages"),
        ("FROM a\nCOPY --from=x /a /b\n", "--from"),
        ("FROM a\nCOPY missing /b\n", "no missing"),
        ("FROM a\nCOPY ../secret /b\n", r"no \.\./secret"),
        ("FROM a\nVOLUME /data\n", "line 2: VOLUME"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(tmp_path, text, says):
    (tmp_path / "secret").write_text("s")
    with pytest.raises(ConfigError, match=says):
        read_dockerfile(dockerfile(tmp_path / "context", text))


def test_a_harbor_task_is_read_with_its_settings(harbor):
    path = harbor / "answer"
    (path / "task.toml").write_text(
        '[task]\nname = "own/name"\n[agent]\ntimeout_sec = 30.0\n[verifier]\ntimeout_sec = 20\nenv = {A = "1"}\n'
        '[environment]\ncpus = 2\nmemory_mb = 512\n[solution]\nenv = {B = "2"}\n'
    )
    task = read_task(path)
    assert (task.name, task.agent_seconds, task.verifier_seconds) == ("own/name", 30.0, 20)
    assert (task.verifier_env, task.solution_env) == ({"A": "1"}, {"B": "2"})
    made = task_of({"task": "answer", "harness": "codex"}, harbor)
    assert (made.limits.cpus, made.limits.memory_mb, made.harness, made.seconds) == (2, 512, "codex", 30.0)
    assert made.instruction.startswith("Write 42") and made.workdir == "/app"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("[environment]\ngpus = 1\n", "environment.gpus"),
        ('[[steps]]\nname = "one"\n', "steps"),
        ("[verifier]\ntimeout_sec = -1\n", "timeout_sec is -1"),
        ("[verifier\n", "is not TOML"),
    ],
)
def test_a_task_that_asks_for_more_is_refused(harbor, settings, says):
    (harbor / "answer" / "task.toml").write_text(settings)
    with pytest.raises(ConfigError, match=says):
        read_task(harbor / "answer")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"label": "x"}, "needs `task`, or `prompt`"),
        ({"task": "answer"}, "agl.tasks.harbor"),
        ({"prompt": "p", "files": {"../x": "y"}}, r"\.\./x"),
        ({"prompt": "p", "tests": 3}, "tests of a row"),
    ],
)
def test_a_row_without_a_task_says_what_it_lacks(row, says):
    with pytest.raises(ConfigError, match=says):
        task_of(row, None)


def test_a_folder_without_tasks_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no task directory"):
        find_tasks(tmp_path)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["tasks", *words], catch_exceptions=False)
    return done.exit_code, done.stdout


def test_tasks_are_tried_by_the_road_of_training(harbor):
    status, out = run(str(harbor), "--backend", "local", "--json")
    (task,) = json.loads(out)["tasks"]
    assert (status, task["oracle"], task["empty"], task["verdict"]) == (0, 1.0, 0.0, "pass")


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("solution/solve.sh", "echo 41 > answer.txt\n", "its own solution is rewarded with 0"),
        ("solution/solve.sh", "exit 3\n", "ended with status 3"),
        ("tests/test.sh", 'echo 1 > "$SANDBOX_ROOT/logs/verifier/reward.txt"\n', "doing nothing is rewarded with 1"),
        ("tests/test.sh", "true\n", "left no /logs/verifier/reward.txt"),
        ("tests/test.sh", 'echo nan > "$SANDBOX_ROOT/logs/verifier/reward.txt"\n', "not a finite number"),
        ("environment/Dockerfile", "FROM a\nRUN rm -rf /\n", "has RUN"),
    ],
)
def test_a_task_that_is_not_sound_is_found(harbor, file, text, says):
    (harbor / "answer" / file).write_text(text)
    status, out = run(str(harbor), "--backend", "local", "--json")
    (task,) = json.loads(out)["tasks"]
    assert status == 1 and says in task["words"]


def test_a_task_without_a_solution_deserves_a_look(harbor):
    (harbor / "answer" / "solution" / "solve.sh").unlink()
    status, out = run(str(harbor), "--backend", "local", "--json")
    assert status == 0 and json.loads(out)["tasks"][0]["verdict"] == "look"


def test_rows_name_the_tasks_that_can_be_read(harbor, tmp_path):
    broken = harbor / "broken"
    broken.mkdir()
    (broken / "task.toml").write_text("")
    rows = tmp_path / "rows.jsonl"
    status, _ = run(str(harbor), "--list", "--rows", str(rows))
    (row,) = [json.loads(line) for line in rows.read_text().splitlines()]
    assert status == 1 and row["metadata"] == {"task": "answer"} and row["prompt"].startswith("Write 42")


def test_check_runs_a_harness_on_a_task_with_its_solution_as_the_model(harbor):
    pytest.importorskip("sglang_router", reason="the local engine needs the real router")
    from slime_agl.harness.catalog import PROGRAMS
    from slime_agl.harness.install import installed_here

    name = next((name for name, made in PROGRAMS.items() if made.shell and installed_here(made)), None)
    if name is None:
        pytest.skip("no harness is installed")
    words = ["check", "--harness", name, "--task", str(harbor), "--backend", "local", "--json"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    findings = {found["name"]: found for found in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 0 and findings["what forked"]["verdict"] == "pass"
    (told,) = [found["words"] for key, found in findings.items() if key.endswith(" on answer")]
    assert "status 0" in told and "reward 1" in told


@pytest.mark.parametrize(
    "words", [["--harness", "codex"], ["--task", "."], ["--agent", "a.b", "--harness", "codex"], []]
)
def test_check_takes_an_agent_or_a_harness(words):
    assert CliRunner().invoke(main, ["check", *words]).exit_code == 2
