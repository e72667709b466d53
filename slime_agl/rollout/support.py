"""What of slime's options this version does not do: refused where silence would be wrong, else said once."""

from __future__ import annotations

from collections.abc import Sequence

from slime_agl.config import Config
from slime_agl.errors import ConfigError
from slime_agl.execution import Execution
from slime_agl.host import RolloutArgs, Sample
from slime_agl.host.defaults import CUSTOM_GENERATE, REWARD_POST_PROCESS
from slime_agl.host.estimators import normalises_groups
from slime_agl.runtime import Runtime

MANY_SAMPLES = 8


def check_supported(args: RolloutArgs, config: Config) -> None:
    """Look at slime's options before anything starts.

    Raises:
        ConfigError: top-p sets are to be replayed while agents choose their own top_p; agl.async with --colocate,
            where agents would meet engines without memory, or with --partial-rollout.
    """
    if args.rollout_top_p != 1.0 and config.sampling == "agent":
        raise ConfigError(
            f"--rollout-top-p is {args.rollout_top_p}, so training replays the sets that the trainer's top_p kept, but "
            "agl.sampling lets agents choose theirs; use agl.sampling: trainer, or --rollout-top-p 1.0"
        )
    if config.async_.enabled and args.colocate:
        raise ConfigError(
            "agl.async.enabled lets agents go on while the trainer trains, which --colocate leaves no engine for; "
            "give the engines GPUs of their own, or use --partial-rollout instead"
        )
    if config.async_.enabled and args.partial_rollout:
        raise ConfigError(
            "--partial-rollout parks what a step does not need, agl.async.enabled lets it go on; choose one of them"
        )


def check_generate_functions(args: RolloutArgs, runtime: Runtime, *, evaluation: bool) -> None:
    """Say which functions of the user's are not asked, because agents are run in their place.

    The flag may be there for an evaluation of slime's own, so it is warned of; a dataset's is for this evaluation.

    Raises:
        ConfigError: an eval dataset names such a function.
    """
    if args.custom_generate_function_path not in (None, CUSTOM_GENERATE):
        runtime.warn_once(
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


def mixes_groups(args: RolloutArgs) -> bool:
    """Whether slime will normalise rewards by position, which mixes groups once an execution gives several Samples."""
    return normalises_groups(args) and args.custom_reward_post_process_path is None


def warn_of_positions(args: RolloutArgs, runtime: Runtime) -> None:
    if mixes_groups(args):
        runtime.warn_once(
            f"--custom-reward-post-process-path is not set: under --advantage-estimator {args.advantage_estimator} slime "
            "normalises rewards by position, so the first execution that gives several Samples will stop the run, and "
            f"masked executions count as reward 0; pass --custom-reward-post-process-path {REWARD_POST_PROCESS}"
        )


def check_fan_out(args: RolloutArgs, execution: Execution, samples: Sequence[Sample]) -> None:
    """Several Samples of one execution need a normalisation that knows of groups.

    Raises:
        ConfigError: slime would take the whole batch for one group, silently.
    """
    if len(samples) > 1 and mixes_groups(args):
        raise ConfigError(
            f"rollout {execution.rollout_id} gave {len(samples)} Samples (forks: {forks(execution)}), and under "
            f"--advantage-estimator {args.advantage_estimator} slime would then normalise the rewards of the whole "
            f"batch as one group; pass --custom-reward-post-process-path {REWARD_POST_PROCESS}"
        )


def warn_of_many_samples(execution: Execution, runtime: Runtime) -> None:
    """Say once that an agent's turns hardly continue each other: every Sample pays for its whole prompt again."""
    if len(execution.segments) > MANY_SAMPLES:
        runtime.warn_once(
            f"rollout {execution.rollout_id} gave {len(execution.segments)} Samples from {len(execution.ledger.turns)} "
            f"turns, each of which trains with its whole prompt. Why turns did not go on from an earlier one: "
            f"{forks(execution)}. An agent that only appends to its messages gives one Sample; "
            "rollout/agl/forks/* counts the reasons from here on",
            topic="many samples",
        )


def forks(execution: Execution) -> str:
    """The reasons of an execution's forks, most frequent first."""
    return ", ".join(f"{count} {reason}" for reason, count in execution.account.forks.most_common()) or "none"
