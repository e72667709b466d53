"""Small tasks, and a run of a harness through the rollout function that slime calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from slime_agl.harness import places
from slime_agl.sandbox.backends import open_backend
from slime_agl.testing.tokenizer import tool_call_text
from tests.harness.doubles import Watched

TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
TOOLS = re.compile(r'"function": \{"name": "([\w.-]+)"')
TEST = """\
cd "$SANDBOX_ROOT/app"
if [ "$(cat answer.txt)" = 42 ] && [ ! -e wrong.txt ]; then reward=1; else reward=0; fi
echo $reward > "$SANDBOX_ROOT/logs/verifier/reward.txt"
"""


@pytest.fixture
def row() -> dict[str, Any]:
    """A row that carries its task: write 42 into answer.txt and remove wrong.txt."""
    return {
        "prompt": "Write 42 into answer.txt and remove wrong.txt.",
        "metadata": {"files": {"wrong.txt": "no\n", "kept.txt": "kept\n"}, "tests": TEST},
    }


@pytest.fixture
def harbor(tmp_path: Path) -> Path:
    """A folder with one Harbor task, `answer`, of the same kind."""
    task = tmp_path / "tasks" / "answer"
    for name in ("environment", "tests", "solution"):
        (task / name).mkdir(parents=True)
    (task / "instruction.md").write_text("Write 42 into answer.txt and remove wrong.txt.\n")
    (task / "task.toml").write_text('schema_version = "1.0"\n[verifier]\ntimeout_sec = 20\n')
    (task / "environment" / "Dockerfile").write_text("FROM python:3.12-slim\nWORKDIR /app\nCOPY wrong.txt .\n")
    (task / "environment" / "wrong.txt").write_text("no\n")
    (task / "tests" / "test.sh").write_text(TEST)
    (task / "solution" / "solve.sh").write_text("echo 42 > answer.txt\nrm wrong.txt\n")
    return task.parent


@pytest.fixture
def scripted(fake_sglang: Any) -> Callable[..., None]:
    """`scripted(program, commands)`: the model calls the program's shell tool with each, then says that it is done.

    Answers go by the number of answers in the conversation, so any number of executions may run at a time.
    """

    def script(program: Any, commands: Sequence[str]) -> None:
        def answer(request: Any) -> str:
            said = TURN.findall(request.text)
            number = sum(role == "assistant" for role, _ in said)
            if not TOOLS.search(request.text):
                return "A side call."
            steps = [*commands, *([program.shell.last] if program.shell.last else [])]
            if number >= len(steps):
                return "Done."
            call = tool_call_text(program.shell.name, program.shell.arguments(steps[number]))
            return f"Step {number}.\n{call}"

        fake_sglang.context_length = 200_000
        fake_sglang.answer_with(answer)

    return script


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """The backends that runtimes open, in order."""
    opened: list[Watched] = []

    def watch(*given: Any) -> Watched:
        opened.append(Watched(open_backend(*given)))
        return opened[-1]

    monkeypatch.setattr(places, "open_backend", watch)
    return opened


@pytest.fixture
def run_harness(run_rollout: Any) -> Callable[..., Any]:
    """`run_harness(agent, rows, **sections)`: one step of rollouts with `agl.agent` a mapping.

    over_sampling: rows begun at a time for a batch of one; 0 for a batch of all.
    """

    def run(
        agent: dict[str, Any], rows: Sequence[Any], *, n_samples: int = 1, over_sampling: int = 0, **sections: Any
    ) -> Any:
        section = {"sandbox": {"backend": "local", "retries": 0}, **sections}
        more = {"rollout_max_response_len": 4096, "rollout_max_context_len": 200_000}
        if over_sampling:
            more |= {"rollout_batch_size": 1, "over_sampling_batch_size": over_sampling}
        return run_rollout(agent, rows, agl=section, n_samples=n_samples, **more)

    return run
