"""What a run finds out about slime's options as it goes: said once, or refused where slime would mix or stop."""

from __future__ import annotations

from collections.abc import Sequence

from slime_agl.errors import ConfigError
from slime_agl.execution import Execution
from slime_agl.host import RolloutArgs, Sample
from slime_agl.host.defaults import CUSTOM_GENERATE, REWARD_POST_PROCESS
from slime_agl.rollout.refusals import cautions, mixes_groups, passrate_counts_samples
from slime_agl.rollout.register import Register

MANY_SAMPLES = 8


def check_generate_functions(args: RolloutArgs, register: Register, *, evaluation: bool) -> None:
    """Say which functions of the user's are not asked, because agents are run in their place.

    The flag may be there for an evaluation of slime's own, so it is warned of; a dataset's is for this evaluation.

    Raises:
        ConfigError: an eval dataset names such a function.
    """
    if args.custom_generate_function_path not in (None, CUSTOM_GENERATE):
        register.warn_once(
            f"--custom-generate-function-path {args.custom_generate_function_path} is not called: this rollout function "
            "runs agl.agent in its place; leave the flag out, or make the function an agent"
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
    """Say once what works, but not in every case."""
    for caution in cautions(args):
        register.warn_once(caution)


def check_fan_out(args: RolloutArgs, execution: Execution, samples: Sequence[Sample]) -> None:
    """Several Samples of one execution need a normalisation that knows of groups, and no pass rates by position.

    Raises:
        ConfigError: slime would take the whole batch for one group, silently; or its trainer would stop.
    """
    if len(samples) < 2:
        return
    if passrate_counts_samples(args):
        raise ConfigError(
            f"rollout {execution.rollout_id} gave {len(samples)} Samples (forks: {forks(execution)}), and --log-passrate "
            "stops slime's trainer when an execution gives more than one; leave it out"
        )
    if mixes_groups(args):
        raise ConfigError(
            f"rollout {execution.rollout_id} gave {len(samples)} Samples (forks: {forks(execution)}), and under "
            f"--advantage-estimator {args.advantage_estimator} slime would then normalise the rewards of the whole "
            f"batch as one group; pass --custom-reward-post-process-path {REWARD_POST_PROCESS}"
        )


def warn_of_many_samples(execution: Execution, register: Register) -> None:
    """Say once that an agent's turns hardly continue each other: every Sample pays for its whole prompt again."""
    if len(execution.segments) > MANY_SAMPLES:
        register.warn_once(
            f"rollout {execution.rollout_id} gave {len(execution.segments)} Samples from {len(execution.ledger.turns)} "
            f"turns, each of which trains with its whole prompt. Why turns did not go on from an earlier one: "
            f"{forks(execution)}. An agent that only appends to its messages gives one Sample; "
            "rollout/agl/forks/* counts the reasons from here on",
            topic="many samples",
        )


def forks(execution: Execution) -> str:
    """The reasons of an execution's forks, most frequent first."""
    return ", ".join(f"{count} {reason}" for reason, count in execution.account.forks.most_common()) or "none"
