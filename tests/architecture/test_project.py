"""The files around the package: scripts, data, and words that must not appear in any file."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "math_feedback"
SCRIPTS = [
    *(path for path in sorted((ROOT / "scripts").rglob("*")) if path.is_file() and not path.suffix),
    ROOT / ".ci" / "run",
    *sorted(ROOT.glob("examples/*/*.sh")),
]
SOURCES = [
    path
    for folder in ("slime_agl", "tests", "examples", "scripts", ".ci", ".github")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix in {"", ".py", ".sh", ".md", ".yaml", ".txt"} and path != Path(__file__)
]
OUT_OF_PLACE = re.compile(r"\bTODO\b|\bFIXME\b|(?<![\w.])/(?:home|Users)/\w")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (EXAMPLE / name).read_text().splitlines()]


@pytest.mark.parametrize("path", SCRIPTS, ids=relative)
def test_shell_scripts_parse_and_can_be_run(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()


@pytest.mark.parametrize(("name", "least"), [("train.jsonl", 64), ("eval.jsonl", 8)])
def test_example_rows_have_what_the_agent_is_given(name: str, least: int) -> None:
    data = rows(name)
    assert len(data) >= least
    for row in data:
        assert set(row) == {"prompt", "label", "metadata"}
        left, sign, right = re.fullmatch(r"What is (\d+) ([+*-]) (\d+)\?", row["prompt"]).groups()
        value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](int(left), int(right))
        assert row["label"] == str(value)


def test_eval_questions_are_not_trained_on() -> None:
    train, held_out = ({row["prompt"] for row in rows(name)} for name in ("train.jsonl", "eval.jsonl"))
    assert len(train) == len(rows("train.jsonl"))
    assert not train & held_out


def test_files_speak_of_the_project_only() -> None:
    found = {relative(path): OUT_OF_PLACE.findall(path.read_text()) for path in SOURCES}
    assert {path: words for path, words in found.items() if words} == {}


def test_only_the_command_line_prints() -> None:
    printing = []
    for path in ROOT.glob("slime_agl/**/*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        names = (call.func.id for call in calls if isinstance(call.func, ast.Name))
        if "print" in names and "cli" not in path.relative_to(ROOT).parts:
            printing.append(relative(path))
    assert printing == []


def test_a_broad_except_says_why() -> None:
    silent = []
    for path in ROOT.glob("slime_agl/**/*.py"):
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ExceptHandler) and takes_all(node) and not passes_on(node):
                if "#" not in "".join(lines[node.lineno - 1 : node.body[0].lineno]):
                    silent.append(f"{relative(path)}:{node.lineno}")
    assert silent == []


def takes_all(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "id", "") in {"Exception", "BaseException"} for kind in caught)


def passes_on(handler: ast.ExceptHandler) -> bool:
    """True if the handler ends by re-raising."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None
