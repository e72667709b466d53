"""Fixed answers: each execution gets all of them, from the first on."""

from __future__ import annotations

from pathlib import Path

from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.engine.backend import Generated, GenerateRequest
from slime_agl.testing.tokenizer import save_tiny_checkpoint, tiny_tokenizer


def test_each_attempt_is_answered_from_the_first_answer_on(tmp_path: Path) -> None:
    stack = LocalStack(str(save_tiny_checkpoint(tmp_path)), says=("one", "two", "three"))
    stack.checkpoint = tmp_path
    backend, said = stack._scripted(), dict[str, list[str]]()
    for rid in (
        "at-1-ab-000000",
        "at-2-cd-000000",
        "at-2-cd-000001",
        "at-1-ab-000001",
        "at-1-ab-000002",
        "at-3-000000",
    ):
        answers: list[Generated] = []
        backend.submit(GenerateRequest(rid=rid, input_ids=(1,)), answers.append)
        text = tiny_tokenizer().decode(answers[0].output_ids, skip_special_tokens=True)
        said.setdefault(rid.rpartition("-")[0], []).append(text)
    assert said == {"at-1-ab": ["one", "two", "three"], "at-2-cd": ["one", "two"], "at-3": ["one"]}
