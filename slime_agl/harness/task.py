"""A task: what the agent is told, where it works, and how its work is graded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_agl.errors import ConfigError
from slime_agl.harness.dockerfile import Recipe
from slime_agl.harness.harbor import HarborTask, read_task
from slime_agl.sandbox.protocol import Limits

TESTS, TEST_SCRIPT = "/tests", "test.sh"
VERIFIER_SECONDS, BUILD_SECONDS = 600.0, 600.0
WORKDIR = "/app"
# Fields of a row that describe a task; `task` names a Harbor directory instead.
FIELDS = ("image", "workdir", "setup", "files", "tests", "verifier_seconds", "verifier_env")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one execution works on.

    instruction: the prompt. recipe: the environment, replayed in the agent's sandbox and again in the grader's.
    files: further texts by path in the work folder. setup: shell lines after them.
    tests: a folder, or texts by path in it; empty if nothing is graded. harness: the row's own, '' for the
    configured one. fields: the row, as the program gets it in AGL_INPUT. seconds: the task's own deadline, None for
    the configured one.
    """

    name: str
    instruction: str
    recipe: Recipe = field(default_factory=Recipe)
    files: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    tests: Path | Mapping[str, str] = field(default_factory=dict)
    verifier_seconds: float = VERIFIER_SECONDS
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    build_seconds: float = BUILD_SECONDS
    limits: Limits = Limits()
    harness: str = ""
    seconds: float | None = None
    fields: Mapping[str, object] = field(default_factory=dict)

    @property
    def workdir(self) -> str:
        return self.recipe.workdir if self.recipe.workdir != "/" else WORKDIR


def task_of(row: object, harbor: Path | None) -> Task:
    """Make a task from what an agent gets for a row: a text, or a mapping with `prompt`.

    A row's `task` is the path of a Harbor directory, relative to `harbor` (agl.tasks.harbor); without it the row
    itself may carry `image`, `workdir`, `setup`, `files`, and `tests`: the text of test.sh, or texts by path.

    Raises:
        ConfigError: the row has no instruction, or names a task that cannot be read.
    """
    fields: Mapping[str, Any] = row if isinstance(row, Mapping) else {"prompt": row}
    harness = str(fields.get("harness") or "")
    if fields.get("task"):
        path = Path(str(fields["task"]))
        if not path.is_absolute() and harbor is None:
            raise ConfigError(f"a row names the task {str(path)!r}; set agl.tasks.harbor to the folder that holds it")
        return of_harbor(read_task((harbor or Path()) / path), harness=harness, fields=fields)
    prompt = fields.get("prompt")
    if isinstance(prompt, list):
        prompt = "\n\n".join(str(message.get("content", "")) for message in prompt if isinstance(message, Mapping))
    if not isinstance(prompt, str) or not prompt:
        raise ConfigError(
            f"a row for a harness needs `task`, or `prompt` as text; it has {', '.join(fields) or 'none'}"
        )
    tests = fields.get("tests") or {}
    return Task(
        name=str(fields.get("name") or fields.get("label") or "row"),
        instruction=prompt,
        recipe=Recipe(image=str(fields.get("image") or ""), workdir=str(fields.get("workdir") or WORKDIR)),
        files=_texts(fields.get("files") or {}, "files"),
        setup=str(fields.get("setup") or ""),
        tests={TEST_SCRIPT: tests} if isinstance(tests, str) else _texts(tests, "tests"),
        verifier_seconds=float(fields.get("verifier_seconds") or VERIFIER_SECONDS),
        verifier_env=_texts(fields.get("verifier_env") or {}, "verifier_env"),
        harness=harness,
        fields=fields,
    )


def of_harbor(task: HarborTask, *, harness: str = "", fields: Mapping[str, object] | None = None) -> Task:
    """Make a task from a Harbor directory."""
    return Task(
        name=task.name,
        instruction=task.instruction,
        recipe=task.recipe,
        tests=task.tests,
        verifier_seconds=task.verifier_seconds,
        verifier_env=task.verifier_env,
        build_seconds=task.build_seconds,
        limits=Limits(cpus=task.cpus, memory_mb=task.memory_mb, storage_mb=task.storage_mb),
        harness=harness,
        seconds=task.agent_seconds,
        fields=fields or {"prompt": task.instruction, "task": str(task.path)},
    )


def _texts(value: object, name: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(x, str) for pair in value.items() for x in pair):
        raise ConfigError(f"the field {name} of a row must map names to texts, got {value!r:.100}")
    if name != "verifier_env" and (bad := [p for p in value if p.startswith("/") or ".." in p.split("/")]):
        raise ConfigError(f"the field {name} of a row has the path {bad[0]!r}; paths are relative and lead inside")
    return dict(value)
