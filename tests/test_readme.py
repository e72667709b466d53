"""The README is short and shows; what it says is tested in tests/guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime_agl.guide import pages

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_it_is_read_in_one_sitting():
    assert len(README.splitlines()) <= 155


def test_the_demos_output_stands_in_the_first_screen():
    head = "\n".join(README.splitlines()[:30])
    assert "./scripts/demo" in head and "./scripts/test" in head and "all invariants held" in head


@pytest.mark.parametrize("command", sorted(set(re.findall(r"\./scripts/\w+", README + CONTRIBUTING))))
def test_commands_exist_and_are_executable(command: str):
    assert (ROOT / command).stat().st_mode & 0o111


def test_agent_configuration_and_flags_stand_side_by_side():
    (table,) = re.findall(r"(?s)<table>(.*?)</table>", README)
    assert re.findall(r"(?m)^```(\w+)$", table) == ["python", "yaml", "text"]
    (flags,) = re.findall(r"(?s)```text\n(.*?)```", table)
    assert len(re.findall(r"(?m)^--", flags)) == 3


def test_the_picture_is_there_for_light_and_dark_pages():
    (picture,) = re.findall(r"<picture>.*?</picture>", README)
    light, dark = (re.findall(rf'{name}="([^"]+)"', picture)[0] for name in (r"\bsrc", "srcset"))
    assert "prefers-color-scheme: dark" in picture and len(re.findall(r'alt="[^"]{40,}"', picture)) == 1
    assert light != dark and (ROOT / light).exists() and (ROOT / dark).exists()


def test_links_into_the_repository_lead_somewhere():
    for path in (ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md", *pages.FOLDER.glob("*.md")):
        for link in re.findall(r"\]\((?!https?://|#)([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists() or (ROOT / link).exists(), f"{path.name} links to {link}"


def test_every_promise_has_a_command():
    (rows,) = re.findall(r"(?s)\| promise \| command \|\n\|---\|---\|\n(.*?)\n\n", README)
    for row in rows.splitlines():
        _, promise, command, _ = row.split("|")
        assert promise.strip() and re.search(r"`(?:scripts/|slime-agl )", command), row


def test_the_tree_names_every_room():
    rooms = {path.name for path in (ROOT / "slime_agl").iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.name for path in (ROOT / "slime_agl").glob("[a-z]*.py")}
    (tree,) = re.findall(r"(?s)## The tree\n\n```\n(.*?)```", CONTRIBUTING)
    assert {f"{name}/" for name in rooms} | modules <= set(tree.split())


def test_continuous_integration_runs_what_a_user_can_run():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert "./.ci/run" in text and "./scripts/check" in text
