"""Stands in for the model under `run.sh --local`: it plays a task's own solution, or gives up if it has no luck."""

from __future__ import annotations

import json
import re
from pathlib import Path

from slime_agl.harness.catalog import PROGRAMS
from slime_agl.harness.program import ShellTool

TASKS = Path(__file__).parent / "tasks"
TOOLS = re.compile(r'"function": \{"name": "([\w.-]+)"')
GIVE_UP = "echo 'I do not know how.' > NOTES"


def answer(said: list[tuple[str, str]], luck: float) -> str:
    """Look around, change the project, look again, and end. luck: from 0, the best answer, to 1."""
    text = "\n".join(words for _, words in said)
    shell = shell_of(TOOLS.findall(said[0][1]))
    steps = ["ls", solution(text) if luck < 0.6 else GIVE_UP, "ls", *([shell.last] if shell.last else [])]
    number = sum(role == "assistant" for role, _ in said)
    if number >= len(steps):
        return "I have changed what the task asks for."
    call = json.dumps({"name": shell.name, "arguments": shell.arguments(steps[number])})
    return f"<tool_call>\n{call}\n</tool_call>"


def shell_of(tools: list[str]) -> ShellTool:
    """The shell tool among those that a program offers; several programs call theirs `bash`."""
    known = [program.shell for program in PROGRAMS.values() if program.shell and program.shell.name in tools]
    alone = (
        [shell for shell in known if shell.last] if len(tools) == 1 else [shell for shell in known if not shell.last]
    )
    return next(iter(alone), ShellTool(name="shell"))


def solution(text: str) -> str:
    """Return what solve.sh does for the task whose instruction appears in the conversation."""
    for task in sorted(TASKS.iterdir()):
        if (task / "instruction.md").read_text(encoding="utf-8").splitlines()[0] in text:
            script = (task / "solution" / "solve.sh").read_text(encoding="utf-8")
            # As one script: some programs take a bare `sed -i` for an edit, and want the file read first.
            return f"bash -s <<'SOLUTION'\n{script}SOLUTION"
    return GIVE_UP
