"""Tab completion, as the shell requests it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slime_agl.cli.main import main

ROOT = Path(__file__).parents[2]


def slime_agl(**variables: str) -> str:
    command = [sys.executable, "-m", "slime_agl.cli.main"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout


def offered(*words: str) -> list[tuple[str, str]]:
    """(kind, value) of each completion that bash is offered for the last word; `plain` values stand as they are."""
    lines = slime_agl(
        _SLIME_AGL_COMPLETE="bash_complete", COMP_WORDS=" ".join(["slime-agl", *words]), COMP_CWORD=str(len(words))
    ).splitlines()
    return [tuple(line.split(",", 1)) for line in lines]


def test_commands_are_completed():
    shown = sorted(name for name, command in main.commands.items() if not command.hidden)
    assert offered("") == [("plain", name) for name in shown]
    assert offered("do") == [("plain", "doctor")]


def test_pages_of_the_guide_are_completed():
    assert offered("guide", "met") == [("plain", "methods"), ("plain", "metrics")]


def test_options_of_a_command_are_completed():
    assert ("plain", "--agent") in offered("check", "--")
    assert offered("audit", "--history", "") == [("plain", "append"), ("plain", "template")]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("doctor", "--config", ""), "file"),
        (("check", "--config", "agl"), "file"),
        (("check", "--data", ""), "file"),
        (("doctor", "--slime", ""), "dir"),
        (("inspect", ""), "file"),
        (("inspect", "run", "--html", ""), "file"),
    ],
)
def test_the_shell_is_told_where_a_file_or_a_directory_is_wanted(words: tuple[str, ...], kind: str):
    assert offered(*words) == [(kind, words[-1])]


def test_the_guides_lines_give_each_shell_its_script():
    page = ROOT / "slime_agl" / "guide" / "commands.md"
    asked = re.findall(r"_SLIME_AGL_COMPLETE=(\w+) slime-agl", page.read_text(encoding="utf-8"))
    assert asked == ["bash_source", "zsh_source", "fish_source"]
    for instruction in asked:
        shell = instruction.removesuffix("_source")
        assert f"_SLIME_AGL_COMPLETE={shell}_complete" in slime_agl(_SLIME_AGL_COMPLETE=instruction)
