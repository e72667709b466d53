"""The README is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime_agl.cli.main import main
from slime_agl.cli.reference import reference
from slime_agl.config import table
from slime_agl.preflight import estimators, weights

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_keys_is_the_configurations():
    (written,) = re.findall(r"(?s)<!-- keys -->\n(.*?)<!-- /keys -->", README)
    assert written == table(), "run scripts/readme"


def test_the_table_of_estimators_is_what_a_run_refuses():
    (written,) = re.findall(r"(?s)<!-- estimators -->\n(.*?)<!-- /estimators -->", README)
    assert written == estimators.table(), "run scripts/readme"


def test_the_table_of_weights_is_what_is_computed():
    (written,) = re.findall(r"(?s)<!-- weights -->\n(.*?)<!-- /weights -->", README)
    assert written == weights.table(), "run scripts/readme"


def test_the_help_of_every_command_is_the_commands():
    (written,) = re.findall(r"(?s)<!-- commands -->\n(.*?)<!-- /commands -->", README)
    assert written == reference(main), "run scripts/readme"
    shown = {name for name, command in main.commands.items() if not command.hidden}
    assert set(re.findall(r"<code>slime-agl (\S+) --help</code>", written)) == shown


def test_the_help_is_the_same_in_every_terminal(monkeypatch: pytest.MonkeyPatch):
    before = reference(main)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert reference(main) == before
    assert max(map(len, before.splitlines())) <= 100


def test_the_demos_output_stands_in_the_first_screen():
    head = "\n".join(README.splitlines()[:30])
    assert "./scripts/demo" in head and "./scripts/test" in head and "all invariants held" in head


@pytest.mark.parametrize("command", sorted(set(re.findall(r"\./scripts/\w+", README))))
def test_commands_exist_and_are_executable(command: str):
    assert (ROOT / command).stat().st_mode & 0o111


def test_the_tree_names_every_room():
    rooms = {path.name for path in (ROOT / "slime_agl").iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.name for path in (ROOT / "slime_agl").glob("[a-z]*.py")}
    (tree,) = re.findall(r"(?s)## The tree\n\n```\n(.*?)```", README)
    assert {f"{name}/" for name in rooms} | modules <= set(tree.split())


def test_the_example_test_of_the_readme_passes(pytester: pytest.Pytester):
    (example,) = re.findall(r"(?s)```python\n(.*?)```", README)
    pytester.makepyfile(
        test_readme_example=example.replace("my_package.agents.adder", "slime_agl.testing.agents.tool_agent")
    )
    pytester.runpytest_subprocess("-W", "default", "-o", "asyncio_default_fixture_loop_scope=function").assert_outcomes(
        passed=1
    )
