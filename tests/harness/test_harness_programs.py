"""The real programs against the gateway: four turns, tool calls that change files, and the reward of the tests.

One that is not installed is skipped by its name: `python -m slime_agl.harness NAME` installs it.
"""

from __future__ import annotations

import shutil

import pytest

from slime_agl.harness.catalog import PROGRAMS
from slime_agl.harness.install import installed_here
from slime_agl.testing.tokenizer import tool_call_text
from tests.conftest import flat

COMMANDS = ("ls", "echo 42 > answer.txt", "rm wrong.txt")
BACKENDS = ("local", "bwrap")
WITH_A_SHELL = [name for name, program in PROGRAMS.items() if program.shell is not None]


def require(name: str, backend: str) -> None:
    if not installed_here(PROGRAMS[name]):
        pytest.skip(f"{name} {PROGRAMS[name].version} is not installed: python -m slime_agl.harness {name}")
    if backend == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WITH_A_SHELL)
def test_a_program_works_on_a_task_and_every_token_is_the_engines(
    run_harness, scripted, fake_sglang, token_exact, row, name, backend
):
    require(name, backend)
    scripted(PROGRAMS[name], COMMANDS)
    output = run_harness({"harness": name, "timeout_seconds": 100}, [row], sandbox={"backend": backend})
    samples = flat(output.samples)
    assert [sample.reward for sample in samples] == [1.0] * len(samples)
    assert token_exact(fake_sglang, output.samples) == output.metrics["rollout/agl/trained_tokens"] > 0
    assert output.metrics["rollout/agl/turns_per_execution"] >= 4
    assert len(samples) == 1 and "rollout/agl/forks/new_conversation" not in output.metrics
    assert not [name for name in output.metrics if "refused" in name]


@pytest.mark.parametrize(("name", "segments"), [("openhands", 1), ("goose", 2)])
def test_several_calls_in_an_answer(run_harness, fake_sglang, token_exact, row, name, segments):
    """Goose sends each call back as a message of its own, which is another conversation; each token is trained once."""
    require(name, "local")
    shell = PROGRAMS[name].shell
    assert shell is not None
    calls = "\n".join(tool_call_text(shell.name, shell.arguments(command)) for command in COMMANDS[1:])

    def answer(request):
        return "Done." if "<|im_start|>assistant\n" in request.text.partition("<|im_start|>user\n")[2][:-30] else calls

    fake_sglang.context_length = 200_000
    fake_sglang.answer_with(answer)
    output = run_harness({"harness": name, "timeout_seconds": 100}, [row])
    samples = flat(output.samples)
    assert [sample.reward for sample in samples] == [1.0] * segments
    assert output.metrics.get("rollout/agl/forks/history_edited", 0) == segments - 1
    assert token_exact(fake_sglang, output.samples) == output.metrics["rollout/agl/trained_tokens"] > 0


def test_executions_of_one_program_do_not_meet(run_harness, scripted, fake_sglang, token_exact, row):
    name = next((name for name in WITH_A_SHELL if installed_here(PROGRAMS[name])), None)
    if name is None:
        pytest.skip(f"none of {', '.join(WITH_A_SHELL)} is installed")
    scripted(PROGRAMS[name], COMMANDS)
    output = run_harness({"harness": name, "timeout_seconds": 100}, [row], n_samples=4)
    assert [sample.reward for sample in flat(output.samples)] == [1.0] * 4
    assert token_exact(fake_sglang, output.samples) > 0
    assert len({sample.rollout_id for sample in flat(output.samples)}) == 4


def test_aider_edits_what_its_replies_quote(run_harness, fake_sglang, token_exact, row):
    require("aider", "local")
    edit = "answer.txt\n```\n<<<<<<< SEARCH\n=======\n42\n>>>>>>> REPLACE\n```"
    fake_sglang.answer_with(lambda request: f"I write the answer.\n\n{edit}\n")
    row["metadata"]["tests"] = row["metadata"]["tests"].replace("&& [ ! -e wrong.txt ]", "")
    output = run_harness({"harness": "aider", "timeout_seconds": 100}, [row], sandbox={"backend": "local"})
    assert [sample.reward for sample in flat(output.samples)] == [1.0]
    assert token_exact(fake_sglang, output.samples) > 0
