"""Run an example on this machine: its agent, the real sglang-router, the rollout function that slime calls. No model.

    python examples/local.py calc_tool --steps 2

The function `answer` of the example's `stand_in.py` replaces the model, because models small enough for a laptop do not
use tools. It is served over HTTP like an engine, and each token that would train is compared with the engine's record
of prompts and answers.
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
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
GROUPS, SAMPLES = 4, 4
CONTEXT = 200_000  # of a tokenizer that spends nearly a token on each letter
TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)

Said = list[tuple[str, str]]
Answer = Callable[[Said, float], str]


def conversation(prompt: str) -> Said:
    """Return the (role, text) pairs of a ChatML prompt, the stand-in's input."""
    return [(role, text.strip()) for role, text in TURN.findall(prompt)]


def responder(name: str, luck: Callable[[int], float]) -> Callable[[Any], str]:
    """Answer requests with an example's stand-in. luck: request number to [0, 1); 0 gets the best answer."""
    answer: Answer = importlib.import_module(f"{name}.stand_in").answer
    return lambda request: answer(conversation(request.text), luck(request.index))


def settings(name: str) -> dict[str, Any]:
    """Return slime's arguments for an example: those of its run.sh and its agl.yaml."""
    folder = HERE / name
    os.environ["EXAMPLES"] = str(HERE)
    given = yaml.safe_load((folder / "agl.yaml").read_text(encoding="utf-8"))
    if "sandbox" in given["agl"]:
        given["agl"]["sandbox"]["backend"] = "local"  # needs nothing installed
    return {
        "prompt_data": str(folder / "train.jsonl"),
        "eval_prompt_data": [name, str(folder / "eval.jsonl")],
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


def with_program(given: dict[str, Any], harness: str) -> dict[str, Any]:
    """Replace the program that is the agent. harness: its name, or `own` for agent.py of the example."""
    own = {"command": f"{sys.executable} -I -S {HERE / 'coding_agent' / 'agent.py'}"}
    agent = own if harness == "own" else {"harness": harness}
    return {**given, "agl": {**given["agl"], "agent": {**agent, "timeout_seconds": 300}}}


def run(name: str, steps: int, harness: str = "") -> None:
    """Run `steps` training steps and an evaluation, printing a line for each. Progress goes to stderr.

    harness: the program that is the agent, '' for the example's own.

    Raises:
        InvariantError: a token that would train is not the engine's own.
    """
    # Printed before the imports, which take seconds.
    print(f"{name}: starting a scripted engine and the router", file=sys.stderr)
    from slime_agl.local.engine.router import start_router
    from slime_agl.local.train.driver import LocalDriver
    from slime_agl.rollout import shutdown
    from slime_agl.testing.host import make_args
    from slime_agl.testing.sglang import FakeSGLang
    from slime_agl.testing.tokenizer import save_tiny_checkpoint

    with ExitStack() as stack:
        checkpoint = save_tiny_checkpoint(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = stack.enter_context(FakeSGLang(context_length=CONTEXT))
        engine.answer_with(responder(name, lambda index: random.Random(index).random()))
        router = stack.enter_context(start_router([engine.url]))
        stack.callback(shutdown)
        given = with_program(settings(name), harness) if harness else settings(name)
        driver = LocalDriver(make_args(router, checkpoint, rollout_max_context_len=CONTEXT, **given))
        print(f"{name}: a scripted stand-in for the model, behind the real sglang-router at {router.url}")
        print(f"{'step':8}{'reward':>8}{'execs':>6}{'turns':>7}{'samples':>9}{'trained':>9}{'masked':>8}  forks")
        checked = 0
        for step in range(steps):
            result = driver.step(step)
            executions = [entry if isinstance(entry, list) else [entry] for group in result.groups for entry in group]
            checked += _report(engine, f"train {step}", executions, result.metrics, "rollout")
        evaluated = driver.evaluate(steps)
        for entry in evaluated.data.values():
            checked += _report(engine, "eval", [[sample] for sample in entry["samples"]], evaluated.metrics, "eval")
        print(f"all {checked} trained tokens are the engine's own, with its logprobs; none was encoded again")


def _report(engine: Any, title: str, executions: list[list[Any]], metrics: dict[str, float], prefix: str) -> int:
    """Check and print one step; returns the number of trained tokens."""
    from slime_agl.trace.invariants import Seen, check_against

    samples = list(itertools.chain.from_iterable(executions))
    seen = [Seen(sent.request.input_ids, sent.ids, sent.logprobs) for sent in engine.answers]
    trained = check_against(seen, samples)
    masked = sum(sample.response_length for sample in samples) - trained
    # An execution's reward is the mean over its Samples, which differ under agl.credit.
    reward = sum(sum(sample.reward for sample in part) / len(part) for part in executions) / len(executions)
    start = f"{prefix}/agl/"
    turns = metrics[f"{start}turns_per_execution"]
    forks = {key.removeprefix(f"{start}forks/"): value for key, value in metrics.items() if "/forks/" in key}
    named = ", ".join(f"{count} {reason}" for reason, count in forks.items()) or "none"
    print(f"{title:8}{reward:8.3f}{len(executions):6}{turns:7.2f}{len(samples):9}{trained:9}{masked:8}  {named}")
    return trained


def main() -> None:
    names = sorted(path.parent.name for path in HERE.glob("*/stand_in.py"))
    parser = argparse.ArgumentParser(description="Run an example on this machine, without a model.")
    parser.add_argument("name", choices=names)
    parser.add_argument("--harness", default="", help="for coding_agent: the program that is the agent, or `own`")
    parser.add_argument("--steps", type=int, default=2, help="training steps (default 2)")
    arguments = parser.parse_args()
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.path.insert(0, str(HERE))
    if arguments.harness and arguments.name != "coding_agent":
        parser.error("--harness is for coding_agent")
    run(arguments.name, arguments.steps, arguments.harness)


if __name__ == "__main__":
    main()
