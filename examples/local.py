"""Run an example on this machine: its agent, the real sglang-router, the rollout function that slime calls.

    python examples/local.py examples/calc_tool --steps 2

SmolLM2-135M answers, on the CPU, where it can do the task at all; a folder with a `stand_in.py` has a task that no
model of that size can do, and its function `answer` replaces the model. Either way each token that would train is
compared with the engine's own record of prompts and answers.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GROUPS, SAMPLES = 4, 4
CONTEXT = 200_000  # of a tokenizer that spends nearly a token on each letter
TEACHER_TOLERANCE = 1e-4
TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)

Said = list[tuple[str, str]]
Answer = Callable[[Said, float], str]


@dataclass(frozen=True, slots=True)
class Rig:
    """What answers. args: makes slime's arguments from overrides. check: compares Samples with the engine's record.

    words: says what answers. url: of the router.
    """

    words: str
    url: str
    args: Callable[..., Any]
    check: Callable[[list[Any]], int]


def conversation(prompt: str) -> Said:
    """Return the (role, text) pairs of a ChatML prompt, the stand-in's input."""
    return [(role, text.strip()) for role, text in TURN.findall(prompt)]


def is_scripted(folder: Path) -> bool:
    return (folder / "stand_in.py").exists()


def responder(folder: Path, luck: Callable[[int], float]) -> Callable[[Any], str]:
    """Answer requests with an example's stand-in. luck: request number to [0, 1); 0 gets the best answer."""
    answer: Answer = importlib.import_module(f"{folder.name}.stand_in").answer
    return lambda request: answer(conversation(request.text), luck(request.index))


def settings(folder: Path) -> dict[str, Any]:
    """Return slime's arguments for an example: those of its run.sh and its agl.yaml."""
    os.environ["EXAMPLES"] = str(folder.parent)
    given = yaml.safe_load((folder / "agl.yaml").read_text(encoding="utf-8"))
    if "sandbox" in given["agl"]:
        given["agl"]["sandbox"]["backend"] = "local"  # needs nothing installed
    return {
        "prompt_data": str(folder / "train.jsonl"),
        "eval_prompt_data": [folder.name, str(folder / "eval.jsonl")],
        "input_key": "prompt",
        "label_key": "label",
        "metadata_key": "metadata",
        "rollout_batch_size": GROUPS,
        "n_samples_per_prompt": SAMPLES,
        "rollout_max_response_len": 1024,
        "custom_rm_path": "slime_agl.reward.custom_rm",
        "custom_reward_post_process_path": "slime_agl.reward.normalize_rewards",
        **given,
    }


def with_program(given: dict[str, Any], harness: str, folder: Path) -> dict[str, Any]:
    """Replace the program that is the agent. harness: its name, or `own` for agent.py of the example."""
    own = {"command": f"{sys.executable} -I -S {folder / 'agent.py'}"}
    agent = own if harness == "own" else {"harness": harness}
    return {**given, "agl": {**given["agl"], "agent": {**agent, "timeout_seconds": 300}}}


def with_teacher(given: dict[str, Any], url: str) -> dict[str, Any]:
    """Make the policy its own teacher: it must score what it sampled as it sampled it, so the divergence is 0."""
    flags = {"use_opd": True, "opd_type": "sglang", "rollout_temperature": 1.0}
    flags["custom_reward_post_process_path"] = "slime_agl.reward.teacher_only"
    return {**given, **flags, "agl": {**given["agl"], "teacher": url}}


@contextmanager
def scripted(folder: Path) -> Iterator[Rig]:
    """A scripted engine, which answers with the example's stand-in."""
    from slime_agl.local.engine.router import start_router
    from slime_agl.testing.host import make_args
    from slime_agl.testing.sglang import FakeSGLang
    from slime_agl.testing.tokenizer import save_tiny_checkpoint
    from slime_agl.trace.invariants import Seen, check_against

    with ExitStack() as stack:
        checkpoint = save_tiny_checkpoint(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = stack.enter_context(FakeSGLang(context_length=CONTEXT))
        engine.answer_with(responder(folder, lambda index: random.Random(index).random()))
        router = stack.enter_context(start_router([engine.url]))

        def check(samples: list[Any]) -> int:
            seen = [Seen(sent.request.input_ids, sent.ids, sent.logprobs) for sent in engine.answers]
            return check_against(seen, samples)

        def args(**given: Any) -> Any:
            return make_args(router, checkpoint, rollout_max_context_len=CONTEXT, **given)

        yield Rig("scripted answers: no model that fits a laptop can do this task", router.url, args, check)


@contextmanager
def sampled(model: str, given: dict[str, Any]) -> Iterator[Rig]:
    """A real model on the CPU. Under `agl.async` Samples may have been sampled in an earlier step."""
    from slime_agl.local.demo.stack import LocalStack

    with LocalStack(model, max_running=GROUPS * SAMPLES, lasting="async" in given["agl"]) as local:

        def check(samples: list[Any]) -> int:
            difference = local.teacher_difference(samples, given["rollout_temperature"])
            if difference >= TEACHER_TOLERANCE:
                raise SystemExit(f"rollout and teacher-forced logprobs differ by {difference:.1e}")
            return local.check(samples)

        def args(**more: Any) -> Any:
            return local.args(**{**more, "rollout_max_response_len": 64, "rollout_max_context_len": 2048})

        yield Rig(f"{local.checkpoint.name} on the CPU", local.url, args, check)


def run(folder: Path, steps: int, *, model: str = "", harness: str = "", record: str = "") -> None:
    """Run `steps` training steps and an evaluation, printing a line for each. Progress goes to stderr.

    model: 'smollm2' or a Hugging Face directory, '' for what the example says. harness: the program that is the agent,
    '' for the example's own. record: where the run is recorded, '' for where agl.yaml says.

    Raises:
        InvariantError: a token that would train is not the engine's own.
    """
    name = folder.name
    # Printed before the imports, which take seconds.
    print(f"{name}: starting an engine and the router", file=sys.stderr)
    from slime_agl.local.train.driver import LocalDriver
    from slime_agl.rollout import shutdown

    given = settings(folder)
    given.setdefault("rollout_temperature", 1.0)
    if harness:
        given = with_program(given, harness, folder)
    if record:
        given["agl"]["record_dir"] = record
    with ExitStack() as stack:
        rig = stack.enter_context(
            scripted(folder) if is_scripted(folder) and not model else sampled(model or "smollm2", given)
        )
        stack.callback(shutdown)
        if given["agl"].get("teacher"):
            given = with_teacher(given, rig.url)
        driver = LocalDriver(rig.args(**given))
        print(f"{name}: {rig.words}; behind the real sglang-router at {rig.url}")
        print(f"{'step':8}{'reward':>8}{'execs':>6}{'turns':>7}{'samples':>9}{'trained':>9}{'masked':>8}  forks")
        checked = 0
        for step in range(steps):
            result = driver.step(step)
            executions = [entry if isinstance(entry, list) else [entry] for group in result.groups for entry in group]
            checked += _report(rig, f"train {step}", executions, result.metrics, "rollout")
        evaluated = driver.evaluate(steps)
        for entry in evaluated.data.values():
            checked += _report(rig, "eval", [[sample] for sample in entry["samples"]], evaluated.metrics, "eval")
        print(f"all {checked} trained tokens are the engine's own, with its logprobs; none was encoded again")


def _report(rig: Rig, title: str, executions: list[list[Any]], metrics: dict[str, float], prefix: str) -> int:
    """Check and print one step; returns the number of trained tokens."""
    samples = list(itertools.chain.from_iterable(executions))
    trained = rig.check(samples)
    masked = sum(sample.response_length for sample in samples) - trained
    # An execution's reward is the mean over its Samples, which differ under agl.credit.
    reward = sum(sum(sample.reward for sample in part) / len(part) for part in executions) / len(executions)
    start = f"{prefix}/agl/"
    turns = metrics[f"{start}turns_per_execution"]
    forks = {key.removeprefix(f"{start}forks/"): value for key, value in metrics.items() if "/forks/" in key}
    named = ", ".join(f"{count} {reason}" for reason, count in forks.items()) or "none"
    print(f"{title:8}{reward:8.3f}{len(executions):6}{turns:7.2f}{len(samples):9}{trained:9}{masked:8}  {named}")
    if (divergence := metrics.get(f"{start}teacher/reverse_kl")) is not None:
        print(f"        reverse KL divergence from the teacher {divergence:.1e} per token")
    return trained


def main() -> None:
    parser = argparse.ArgumentParser(description="Run an example on this machine, without GPU or slime.")
    parser.add_argument("folder", type=Path, help="the example's")
    parser.add_argument("--harness", default="", help="for coding_agent: the program that is the agent, or `own`")
    parser.add_argument(
        "--model", default="", help="'smollm2' or a Hugging Face directory, in place of scripted answers"
    )
    parser.add_argument("--steps", type=int, default=2, help="training steps (default 2)")
    parser.add_argument("--record", default="", metavar="DIRECTORY", help="keep the record here, for slime-agl inspect")
    arguments = parser.parse_args()
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    folder = arguments.folder.resolve()
    sys.path.insert(0, str(folder.parent))
    if not (folder / "agl.yaml").exists():
        parser.error(f"{folder} has no agl.yaml")
    if arguments.harness and isinstance(settings(folder)["agl"]["agent"], str):
        parser.error(f"--harness is for an example whose agent is a program, and {folder.name}'s is a function")
    run(folder, arguments.steps, model=arguments.model, harness=arguments.harness, record=arguments.record)


if __name__ == "__main__":
    main()
