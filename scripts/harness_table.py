"""The guide's table of harnesses: see scripts/harnesses."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from slime_agl.harness.catalog import PROGRAMS
from slime_agl.harness.harbor import read_task
from slime_agl.preflight.harness_plan import solver
from slime_agl.rollout import generate, shutdown
from slime_agl.testing.host import ListDataSource, make_args
from slime_agl.testing.sglang import FakeSGLang
from slime_agl.testing.tokenizer import save_tiny_checkpoint
from slime_agl.trace.invariants import Seen, check_against

ROOT = Path(__file__).parents[1]
TASK = ROOT / "examples" / "coding_agent" / "tasks" / "roman"
BACKENDS = ("local", "bwrap")
CONTEXT = 200_000
HEAD = "| program | protocol | sandbox | turns | segments | forks | trained tokens | refused | reward |\n" + (
    "|---|---|---|---|---|---|---|---|---|\n"
)
SPEAKS = {"claude_code": "Messages", "codex": "Responses"}


def row(name: str, backend: str) -> str:
    """Run a program once and describe the run. Raises InvariantError if a trained token is not the engine's own."""
    task = read_task(TASK)
    with ExitStack() as stack:
        checkpoint = save_tiny_checkpoint(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = stack.enter_context(FakeSGLang(context_length=CONTEXT))
        play = solver(name, [task])
        engine.answer_with(lambda request: play(request.text))
        stack.callback(shutdown)
        section = {"agent": {"harness": name, "timeout_seconds": 300}, "sandbox": {"backend": backend}}
        args = make_args(
            engine,
            checkpoint,
            rollout_batch_size=1,
            n_samples_per_prompt=1,
            rollout_max_response_len=4096,
            rollout_max_context_len=CONTEXT,
            agl=section,
        )
        prompt = {"prompt": task.instruction, "metadata": {"task": str(TASK)}}
        output = generate(args, 0, ListDataSource([prompt], 1))
        seen = [Seen(sent.request.input_ids, sent.ids, sent.logprobs) for sent in engine.answers]
        samples = [sample for group in output.samples for entry in group for sample in _flat(entry)]
        return _row(name, backend, check_against(seen, samples), samples[0].reward, output.metrics)


def _row(name: str, backend: str, trained: int, reward: Any, metrics: dict[str, float]) -> str:
    of = {key.removeprefix("rollout/agl/"): value for key, value in metrics.items()}
    forks = ", ".join(f"{k.removeprefix('forks/')} ×{v:g}" for k, v in of.items() if k.startswith("forks/")) or "none"
    cells: Sequence[object] = (
        f"`{name}` {PROGRAMS[name].version}",
        SPEAKS.get(name, "chat completions"),
        backend,
        f"{of['turns_per_execution']:g}",
        f"{of['segments_per_execution']:g}",
        forks,
        trained,
        f"{of.get('refused_requests', 0):g}",
        f"{reward:g}",
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def _flat(entry: Any) -> list[Any]:
    return entry if isinstance(entry, list) else [entry]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--print", action="store_true", dest="show", help="write the table to stdout")
    shelled = [name for name, program in PROGRAMS.items() if program.shell is not None]
    parser.add_argument("--only", choices=shelled, help="one program")
    given = parser.parse_args()
    table = HEAD
    for name in [given.only] if given.only else shelled:
        for backend in BACKENDS:
            print(f"{name} in {backend}", file=sys.stderr)
            table += row(name, backend)
    if given.show or given.only:
        sys.stdout.write(table)
        return
    page = ROOT / "slime_agl" / "guide" / "harnesses.md"
    text = page.read_text(encoding="utf-8")
    text, found = re.subn(r"(?s)(<!-- harnesses -->\n).*?(<!-- /harnesses -->)", lambda m: m[1] + table + m[2], text)
    assert found == 1, f"{page} has no part for the table of harnesses"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
