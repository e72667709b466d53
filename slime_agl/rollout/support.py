"""What executions share across steps, and the checks of slime's options that need an execution to have run."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

from slime_agl.errors import ConfigError
from slime_agl.execution import Execution
from slime_agl.host import RolloutArgs, Sample
from slime_agl.host.defaults import CUSTOM_GENERATE, REWARD_POST_PROCESS
from slime_agl.rollout.refusals import cautions, mixes_groups, passrate_counts_samples

logger = logging.getLogger(__name__)

MANY_SAMPLES = 8
# Above any index that a data source gives.
FIRST_NUMBER = 1 << 40


class Register:
    """Shared by the executions of all steps on a runtime: numbers, warnings already given, lost tokens."""

    def __init__(self) -> None:
        self._numbers = itertools.count(FIRST_NUMBER)
        self._said: set[str] = set()
        self._lost = 0

    def next_number(self) -> int:
        """A number for an execution whose Sample has no index."""
        return next(self._numbers)

    def warn_once(self, message: str, *, topic: str = "") -> None:
        """Log a warning the first time; `topic` identifies it when its text varies."""
        if (topic or message) not in self._said:
            self._said.add(topic or message)
            logger.warning(message)

    def lose(self, tokens: int) -> None:
        """Count the sampled tokens of a finished execution whose group is given up."""
        self._lost += tokens

    def take_lost(self) -> int:
        """Tokens that were lost since the last call."""
        tokens, self._lost = self._lost, 0
        return tokens


def check_generate_functions(args: RolloutArgs, register: Register, *, evaluation: bool) -> None:
    """Report generate functions that are not called because agents run in their place.

    The flag may be meant for slime's own evaluation, so it only causes a warning; a dataset's own function is an error.

    Raises:
        ConfigError: an eval dataset names such a function.
    """
    if args.custom_generate_function_path not in (None, CUSTOM_GENERATE):
        register.warn_once(
            f"--custom-generate-function-path {args.custom_generate_function_path} is not called: this rollout "
            "function runs agl.agent in its place; leave the flag out, or make the function an agent"
        )
    for dataset in args.eval_datasets if evaluation else ():
        path = getattr(dataset, "custom_generate_function_path", None)
        if path not in (None, CUSTOM_GENERATE):
            raise ConfigError(
                f"eval dataset {dataset.name} names custom_generate_function_path {path}, which would not be called: "
                "every dataset is run by agl.agent. Leave it out, or evaluate with "
                "--eval-function-path slime.rollout.sglang_rollout.generate_rollout"
            )


def warn(args: RolloutArgs, register: Register) -> None:
    """Log each caution once."""
    for caution in cautions(args):
        register.warn_once(caution)


def check_fan_out(args: RolloutArgs, execution: Execution, samples: Sequence[Sample]) -> None:
    """Check that slime can handle several Samples of one execution.

    Raises:
        ConfigError: slime would silently normalise the whole batch as one group, or its trainer would stop.
    """
    if len(samples) < 2:
        return
    if passrate_counts_samples(args):
        raise ConfigError(
            f"rollout {execution.rollout_id} gave {len(samples)} Samples (forks: {forks(execution)}), and "
            "--log-passrate stops slime's trainer when an execution gives more than one; leave it out"
        )
    if mixes_groups(args):
        raise ConfigError(
            f"rollout {execution.rollout_id} gave {len(samples)} Samples (forks: {forks(execution)}), and under "
            f"--advantage-estimator {args.advantage_estimator} slime would then normalise the rewards of the whole "
            f"batch as one group; pass --custom-reward-post-process-path {REWARD_POST_PROCESS}"
        )


def warn_of_many_samples(execution: Execution, register: Register) -> None:
    """Warn once that an agent's turns rarely extend each other: every Sample then trains with its whole prompt."""
    if len(execution.segments) > MANY_SAMPLES:
        register.warn_once(
            f"rollout {execution.rollout_id} gave {len(execution.segments)} Samples from {len(execution.ledger.turns)} "
            f"turns, each of which trains with its whole prompt. Why turns did not go on from an earlier one: "
            f"{forks(execution)}. An agent that only appends to its messages gives one Sample; "
            "rollout/agl/forks/* counts the reasons from here on",
            topic="many samples",
        )


def forks(execution: Execution) -> str:
    """Reasons for an execution's forks, most frequent first."""
    return ", ".join(f"{count} {reason}" for reason, count in execution.account.forks.most_common()) or "none"
