"""Plan the dry run of a program: its section, its rows, and a model that plays the tasks' own solutions."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slime_agl.config.sandbox import SandboxConfig
from slime_agl.errors import ConfigError
from slime_agl.harness.catalog import program_named
from slime_agl.harness.harbor import HarborTask, find_tasks, read_task
from slime_agl.harness.install import Installer
from slime_agl.harness.places import ON_THIS_MACHINE

TURNS = re.compile(r"<\|im_start\|>assistant\n")
LOOK = "ls -la"


def write_plan(harness: str, folder: Path, most: int, scratch: Path) -> tuple[list[HarborTask], Path]:
    """Read at most `most` tasks of a folder and write their rows. Returns both.

    Raises:
        ConfigError: there is no such harness, or no task that can be read.
    """
    program_named(harness)
    tasks = [read_task(path) for path in find_tasks(folder)[:most]]
    rows = scratch / "rows.jsonl"
    lines = [
        json.dumps({"prompt": task.instruction, "label": task.name, "metadata": {"task": str(task.path)}}) + "\n"
        for task in tasks
    ]
    rows.write_text("".join(lines), encoding="utf-8")
    return tasks, rows


def section_of(harness: str, section: dict[str, Any], backend: str | None) -> dict[str, Any]:
    """The `agl:` section for a harness; what the user's own says of the agent and its sandbox is kept."""
    given = section.get("agent")
    agent = dict(given) if isinstance(given, dict) else {}
    sandbox = dict(section.get("sandbox") or {})
    if backend is not None:
        sandbox["backend"] = backend
    return {**section, "agent": {**agent, "harness": harness}, "sandbox": sandbox}


def install_here(harness: str, section: dict[str, Any]) -> None:
    """Install the program now, so that the run is not blamed for the time. Raises SandboxError."""
    if section["sandbox"].get("backend", SandboxConfig().backend) in ON_THIS_MACHINE:
        program = program_named(harness, section["agent"].get("version", ""))
        asyncio.run(Installer().install(program))


def as_script(text: str) -> str:
    """Shell lines as one command. Some programs take a bare `sed -i` for an edit and want the file read first."""
    return f"bash -s <<'SOLUTION'\n{text.rstrip()}\nSOLUTION"


def solver(harness: str, tasks: Sequence[HarborTask]) -> Callable[[str], str]:
    """Answers that look around, do what the task's solve.sh does, look again, and end.

    Raises:
        ConfigError: the harness has no shell tool, or a task no solution to play.
    """
    shell = program_named(harness).shell
    if shell is None:
        raise ConfigError(f"{harness} has no shell tool to script; give --engine, or --say with its own replies")
    if missing := [task.name for task in tasks if task.solution is None]:
        raise ConfigError(f"{missing[0]} has no solution/solve.sh to play; give --engine, --model or --say")
    scripts = {
        task.instruction.strip().splitlines()[0]: (task.solution / "solve.sh").read_text(encoding="utf-8")
        for task in tasks
        if task.solution is not None
    }

    def play(prompt: str) -> str:
        script = next((text for first, text in scripts.items() if first in prompt), "true")
        steps = [LOOK, as_script(script), LOOK, *([shell.last] if shell.last else [])]
        number = len(TURNS.findall(prompt)) - 1
        if number >= len(steps):
            return "Done."
        call = json.dumps({"name": shell.name, "arguments": shell.arguments(steps[number])})
        return f"<tool_call>\n{call}\n</tool_call>"

    return play
