"""Run the demo: training steps and one evaluation, each checked."""

from __future__ import annotations

from argparse import Namespace
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slime_agl.cli.demo.report import DemoReport, StepChecks
from slime_agl.cli.waiting import waiting
from slime_agl.cli.workers import in_workers
from slime_agl.errors import InvariantError
from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.train.driver import LocalDriver
from slime_agl.rollout import shutdown

RESPONSE_TOKENS = 32
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """steps: of training. groups: prompts per step. samples: executions per prompt. workers: None for this process.

    record: where the run is recorded; None for nowhere.
    """

    steps: int
    groups: int
    samples: int
    model: str
    seed: int
    workers: int | None
    record: Path | None = None


def run_demo(report: DemoReport, example: Path, plan: DemoPlan) -> int:
    """Run and report. Returns the exit status: 1 if an invariant is broken."""
    with ExitStack() as stack:
        with waiting("loading the model, starting engine and router"):
            local = stack.enter_context(
                LocalStack(plan.model, max_running=max(8, plan.groups * plan.samples), seed=plan.seed)
            )
        stack.callback(shutdown)
        driver = LocalDriver(_args(local, example, plan))
        report.started(local.checkpoint, local.url, plan.workers)
        try:
            for step in range(plan.steps):
                result = driver.step(step)
                report.step(result, _check(local, result.samples))
            evaluated = driver.evaluate(plan.steps)
            for entry in evaluated.data.values():
                report.evaluation(entry, evaluated, _check(local, entry["samples"]))
            report.finish(TEMPERATURE)
        except InvariantError as error:
            report.broken(error)
            return 1
    return 0 if report.all_held else 1


def _check(local: LocalStack, samples: list[Any]) -> StepChecks:
    checked = local.check(samples)
    return StepChecks(checked, local.in_flight, local.teacher_difference(samples, TEMPERATURE))


def _args(local: LocalStack, example: Path, plan: DemoPlan) -> Namespace:
    settings = yaml.safe_load((example / "agl.yaml").read_text(encoding="utf-8"))
    if plan.record is not None:
        settings["agl"]["record_dir"] = str(plan.record)
    return local.args(
        prompt_data=str(example / "train.jsonl"),
        eval_prompt_data=["math_feedback", str(example / "eval.jsonl")],
        input_key="prompt",
        label_key="label",
        rollout_batch_size=plan.groups,
        n_samples_per_prompt=plan.samples,
        rollout_max_response_len=RESPONSE_TOKENS,
        rollout_max_context_len=1024,
        rollout_temperature=TEMPERATURE,
        custom_rm_path="slime_agl.reward.custom_rm",
        **{**settings, "agl": in_workers(settings["agl"], plan.workers)},
    )
