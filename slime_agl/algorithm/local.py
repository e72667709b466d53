"""slime's driver for a machine without slime or GPU: `python -m slime_agl.algorithm.local SETTINGS.json`.

SETTINGS: slime's arguments, as `slime_agl.SLIME` writes them. A small model trains on the CPU; each trained token is
compared with the engine's own record.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.host.defaults import default_args
from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.engine.model import load_model, use_threads
from slime_agl.local.train.boxes import aimless
from slime_agl.local.train.driver import LocalDriver
from slime_agl.local.train.learner import Learner, LearnerSettings
from slime_agl.local.train.tiny_model import CONTEXT_LENGTH, make_tiny_checkpoint
from slime_agl.local.train.training import TrainedStep, train
from slime_agl.rollout import shutdown

TINY = "tiny"
STEPS = 60
RECENT = 5
MAX_RUNNING = 64
# Defaults for the tiny model, and for any.
FOR_TINY = {"rollout_max_context_len": CONTEXT_LENGTH, "rollout_max_response_len": 16}
FOR_ALL = {"rollout_batch_size": 4, "n_samples_per_prompt": 8}

Settings = dict[str, Any]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    os.environ.setdefault("TQDM_DISABLE", "1")
    given: Settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        with tempfile.TemporaryDirectory(prefix="slime_agl-local-") as folder:
            _train(given, Path(folder))
    except SlimeAglError as error:
        sys.exit(f"{error.boundary}: {error}")


def _train(given: Settings, folder: Path) -> None:
    use_threads(None)
    seed, model = int(given.get("seed", 0)), str(given.pop("hf_checkpoint", TINY))
    given = {**FOR_ALL, **(FOR_TINY if model == TINY else {}), **given}
    _require_numbers(given)
    if model == TINY:
        _say("creating a tiny model, which knows the words of the box task only")
        model = str(make_tiny_checkpoint(folder / "tiny", seed, talks=aimless))
    running = min(given["rollout_batch_size"] * given["n_samples_per_prompt"], MAX_RUNNING)
    with ExitStack() as stack:
        local = stack.enter_context(LocalStack(model, max_running=running, seed=seed))
        stack.callback(shutdown)
        driver = LocalDriver(local.args(**given))
        learner = Learner(load_model(local.checkpoint), _learner(driver.args))
        steps = int(STEPS if given.get("num_rollout") is None else given["num_rollout"])
        if steps == 0 and given.get("eval_prompt_data"):
            _evaluate(driver, 0, local)
        _say(f"training {Path(model).name} for at most {steps} steps, engine on CPU behind the router at {local.url}")
        rewards: list[float] = []
        for step in train(driver, learner, local.publish) if steps else ():
            rewards.append(step.reward)
            _say(_told(step, local.check(step.rollout.samples)))
            done = len(rewards)
            if given.get("eval_prompt_data") and done % int(given.get("eval_interval") or steps) == 0:
                _evaluate(driver, done, local)
            if done >= steps or _reached(given.get("target_reward"), rewards):
                break


def _require_numbers(given: Settings) -> None:
    """Raise ConfigError for text in the place of a number, as slime's parser does."""
    for name, usual in {**vars(default_args()), **FOR_ALL, "num_rollout": STEPS, "eval_interval": STEPS}.items():
        value = given.get(name)
        if isinstance(usual, int | float) and not isinstance(usual, bool) and not isinstance(value, int | float | None):
            raise ConfigError(f"{name} is {value!r}, it must be a number")


def _reached(target: float | None, rewards: list[float]) -> bool:
    recent = rewards[-RECENT:]
    reached = target is not None and len(recent) == RECENT and sum(recent) / RECENT > target
    if reached:
        _say(f"the mean reward of the last {RECENT} steps is above {target}")
    return reached


def _learner(args: Namespace) -> LearnerSettings:
    """The learner's settings from slime's flags; those of the tiny model's tasks by default."""
    return LearnerSettings(
        learning_rate=float(getattr(args, "lr", 1e-3)),
        updates=int(getattr(args, "updates", 6)),
        temperature=float(args.rollout_temperature),
        clip=float(getattr(args, "eps_clip", 0.2)),
        clip_high=float(getattr(args, "eps_clip_high", 0.28)),
        entropy=float(getattr(args, "entropy_coef", 0.02)),
        max_norm=float(getattr(args, "clip_grad", 1.0)),
    )


def _told(step: TrainedStep, checked: int) -> str:
    metrics = step.rollout.metrics
    return (
        f"step {step.rollout.rollout_id}: reward {step.reward:.3f}, "
        f"{metrics['rollout/agl/turns_per_execution']:.2f} turns per execution, {checked} trained tokens are the "
        f"engine's own, rollout {step.rollout.seconds:.1f} s, learner {step.learn_seconds:.1f} s"
    )


def _evaluate(driver: LocalDriver, number: int, local: LocalStack) -> None:
    for name, found in driver.evaluate(number).data.items():
        rewards = found["rewards"]
        local.check(found["samples"])
        _say(f"eval {name} after {number} steps: reward {sum(rewards) / len(rewards):.3f} over {len(rewards)}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
