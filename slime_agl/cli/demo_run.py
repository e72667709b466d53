"""The demo's run: steps and one evaluation, each checked."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import yaml

from slime_agl.cli.demo_report import Report, StepChecks
from slime_agl.cli.waiting import waiting
from slime_agl.errors import InvariantError
from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.train.driver import LocalDriver
from slime_agl.rollout import shutdown

RESPONSE_TOKENS = 32
TEMPERATURE = 0.8


def run_demo(
    report: Report, *, example: Path, steps: int, groups: int, samples: int, model: str, seed: int, tolerance: float
) -> int:
    """Run and report; returns the exit status, 1 when an invariant did not hold."""
    with waiting("loading the model, starting engine and router"):
        stack = LocalStack(model, max_running=max(8, groups * samples), seed=seed)
        stack.__enter__()
    try:
        args = _args(stack, example, groups, samples)
        report.started(stack.checkpoint, stack.url)
        driver = LocalDriver(args)
        for step in range(steps):
            result = driver.step(step)
            report.step(result, _check(stack, result.samples, tolerance))
        evaluated = driver.evaluate(steps)
        for name, entry in evaluated.data.items():
            report.evaluation(name, entry, evaluated, _check(stack, entry["samples"], tolerance))
        report.finish(TEMPERATURE)
    except InvariantError as error:
        report.broken(error)
        return 1
    finally:
        shutdown()
        stack.__exit__(None, None, None)
    return 0 if report.all_held else 1


def _check(stack: LocalStack, samples: list[Any], tolerance: float) -> StepChecks:
    checked = stack.check(samples)
    return StepChecks(checked, stack.in_flight, stack.teacher_difference(samples, TEMPERATURE), tolerance)


def _args(stack: LocalStack, example: Path, groups: int, samples: int) -> Namespace:
    settings = yaml.safe_load((example / "agl.yaml").read_text(encoding="utf-8"))
    return stack.args(
        prompt_data=str(example / "train.jsonl"),
        eval_prompt_data=["math_feedback", str(example / "eval.jsonl")],
        input_key="prompt",
        label_key="label",
        rollout_batch_size=groups,
        n_samples_per_prompt=samples,
        rollout_max_response_len=RESPONSE_TOKENS,
        rollout_max_context_len=1024,
        rollout_temperature=TEMPERATURE,
        custom_rm_path="slime_agl.reward.custom_rm",
        **settings,
    )
