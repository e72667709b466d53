"""Several Samples of one execution: what slime can do with them, and why there are so many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slime_agl.errors import ConfigError
from slime_agl.execution import Execution
from slime_agl.executor.register import Register
from slime_agl.host import RolloutArgs, Sample
from slime_agl.host.defaults import REWARD_POST_PROCESS
from slime_agl.host.estimators import normalises_groups

MANY_SAMPLES = 8


def mixes_groups(args: RolloutArgs) -> bool:
    """Return True if slime normalises rewards by position, which mixes groups if executions give several Samples."""
    return normalises_groups(args) and args.custom_reward_post_process_path is None


def passrate_counts_samples(args: RolloutArgs) -> bool:
    """Return True if slime's trainer needs one Sample per execution, for its pass rates."""
    trainer = args.trainer
    return trainer.log_passrate and args.n_samples_per_prompt > 1 and not trainer.debug_rollout_only


def check_fan_out(args: RolloutArgs, execution: Execution, samples: Sequence[Sample]) -> None:
    """Check that slime can handle several Samples of one execution.

    Raises:
        ConfigError: slime would silently normalise the whole batch as one group, or its trainer would stop.
    """
    if len(samples) < 2:
        return
    many = f"rollout {execution.rollout_id} gave {len(samples)} Samples (forks: {forks(execution.account.forks)}), and"
    if passrate_counts_samples(args):
        raise ConfigError(
            f"{many} --log-passrate stops slime's trainer when an execution gives more than one; leave it out"
        )
    if mixes_groups(args):
        raise ConfigError(
            f"{many} under --advantage-estimator {args.advantage_estimator} slime would then normalise the rewards "
            f"of the whole batch as one group; pass --custom-reward-post-process-path {REWARD_POST_PROCESS}"
        )


def warn_of_many_samples(execution: Execution, register: Register) -> None:
    """Warn once that an agent's turns rarely extend each other: every Sample then trains with its whole prompt."""
    if len(execution.segments) > MANY_SAMPLES:
        register.warn_once(
            f"rollout {execution.rollout_id} gave {len(execution.segments)} Samples from {len(execution.ledger.turns)} "
            f"turns, each of which trains with its whole prompt. Why turns did not go on from an earlier one: "
            f"{forks(execution.account.forks)}. An agent that only appends to its messages gives one Sample; "
            "rollout/agl/forks/* counts the reasons from here on",
            topic="many samples",
        )


def forks(reasons: Counter[str]) -> str:
    """Reasons for an execution's forks, most frequent first."""
    return ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "none"
