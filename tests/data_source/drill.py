"""A run that is killed and resumed, in slime's order of calls. A separate program: each run is a fork of it.

Usage: drill.py DIRECTORY ORDER EVENT NUMBER [ORDER EVENT NUMBER ...]; prints one line of JSON for each triple.
ORDER is `train` or `train_async`; the run is killed at the NUMBERth time that EVENT happens.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import agentlightning as agl
import httpx

from slime_agl import data_source
from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.host import default_args, state_file
from slime_agl.rollout import generate, shutdown
from slime_agl.testing.host import make_args
from slime_agl.testing.sglang import FakeSGLang
from slime_agl.testing.tokenizer import save_tiny_checkpoint

STEPS, SAVE_INTERVAL, ROWS = 4, 2, 7
happened: Counter[str] = Counter()
kill_at: tuple[str, int] = ("", 0)
dropped: list[int] = []


def event(name: str) -> None:
    happened[name] += 1
    if (name, happened[name]) == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


@agl.rollout
async def agent(task: Any, llm: Any) -> float:
    event("agent call")
    request = {"model": "m", "messages": [{"role": "user", "content": task["prompt"]}]}
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    async with httpx.AsyncClient(verify=False) as http:  # without reading certificates
        (await http.post(f"{llm.endpoint}/chat/completions", json=request, headers=headers)).raise_for_status()
    return 1.0


def drop_some(args: Any, group: list[Any], **kwargs: Any) -> bool:
    keep = group[0].prompt not in ("row 2", "row 5")
    if not keep:
        dropped.append(group[0].group_index)
    return keep


class Run:
    """Weights are a list of the groups they were trained on, and of those that were dropped before."""

    def __init__(self, directory: Path, fake: FakeSGLang, checkpoint: Path) -> None:
        prompts = directory / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"input": f"row {at}"}) + "\n" for at in range(ROWS)), "utf-8")
        self.args = make_args(
            fake,
            checkpoint,
            agl={"agent": "__main__:agent"},
            prompt_data=str(prompts),
            rollout_shuffle=True,
            rollout_batch_size=2,
            over_sampling_batch_size=3,
            n_samples_per_prompt=2,
            save=str(directory),
            load=str(directory),
            dynamic_sampling_filter_path="__main__.drop_some",
        )
        self.source = data_source.ResumableDataSource(self.args)
        self.weights: list[Any] = []
        self.tracker = directory / "latest.json"
        self.first = 0
        if self.tracker.exists():
            step, self.weights = json.loads(self.tracker.read_text("utf-8"))
            self.first = step + 1
        self.source.load(self.first - 1)

    def go(self, order: str) -> None:
        ahead = self.generate(self.first) if order == "train_async" else None
        for step in range(self.first, STEPS):
            batch = self.generate(step) if ahead is None else ahead
            ahead = self.generate(step + 1) if ahead is not None else None
            self.weights += batch
            if (step + 1) % SAVE_INTERVAL == 0:
                part = self.tracker.with_suffix(".part")
                part.write_text(json.dumps([step, self.weights]), "utf-8")
                part.replace(self.tracker)
                event("weights saved")
                self.source.save(step)
                event("saved")

    def generate(self, step: int) -> list[Any]:
        dropped.clear()
        output = generate(self.args, step, self.source)
        event("generated")
        batch = [[group[0].group_index, group[0].prompt] for group in output.samples]
        return batch + [[number, None] for number in dropped]


def in_a_fork(directory: Path, order: str, killed: tuple[str, int]) -> int:
    """Run to the end or the kill; returns the signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        globals()["kill_at"] = killed
        write = state_file._write

        def watched(part: Path, content: bytes) -> None:
            part.write_bytes(content[:10])
            event("half written")
            part.unlink()
            write(part, content)

        state_file._write = watched
        with FakeSGLang() as fake:
            fake.answer_with(lambda request: "ok")
            Run(directory, fake, directory.parent).go(order)
            shutdown()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def drill(directory: Path, order: str, name: str, number: int) -> dict[str, Any]:
    """Return what the resumed run has trained on, and what it would give out next."""
    directory.mkdir()
    ended = [in_a_fork(directory, order, (name, number)), in_a_fork(directory, order, ("", 0))]
    args = default_args(
        prompt_data=str(directory / "prompts.jsonl"),
        rollout_shuffle=True,
        n_samples_per_prompt=2,
        load=str(directory),
        hf_checkpoint=str(directory.parent),
    )
    fresh, left = data_source.ResumableDataSource(args), data_source.ResumableDataSource(args)
    step, weights = json.loads((directory / "latest.json").read_text("utf-8"))
    left.load(step)
    return {
        "ended": ended,
        "parts": [part.name for part in directory.rglob("*.part")],
        "weights": weights,
        "left": [[group[0].group_index, group[0].prompt] for group in left.buffer],
        "given": left.sample_group_index,
        "prompts": [group[0].prompt for _ in range(left.sample_group_index) for group in fresh.get_samples(1)],
    }


if __name__ == "__main__":
    root = Path(sys.argv[1])
    load_tokenizer(str(save_tiny_checkpoint(root)))  # imported here, it is imported for all forks
    triples = sys.argv[2:]
    for at in range(0, len(triples), 3):
        print(json.dumps(drill(root / str(at), triples[at], triples[at + 1], int(triples[at + 2]))))
