"""What of slime's options this version does not do: refused where silence would be wrong, else said once."""

from __future__ import annotations

from slime_agl.errors import ConfigError
from slime_agl.host import RolloutArgs, Sample
from slime_agl.runtime import Runtime

GROUP_NORMALISING = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")


def check_supported(args: RolloutArgs) -> None:
    """Look at slime's options before anything starts.

    Raises:
        ConfigError: --use-rollout-routing-replay, whose data this version does not ask the engine for.
    """
    if args.use_rollout_routing_replay:
        raise ConfigError(
            "--use-rollout-routing-replay is not supported: routed experts are not requested from the engine, "
            "so training would replay none; leave the flag out"
        )


def warn_of_partial_rollout(args: RolloutArgs, runtime: Runtime) -> None:
    if args.partial_rollout:
        runtime.warn_once("--partial-rollout has no effect: groups that are not finished start afresh in the next step")


def check_replay(args: RolloutArgs, sample: Sample) -> None:
    """With a top_p that slime replays, every Sample must have the sets.

    Raises:
        ConfigError: they did not arrive.
    """
    if args.rollout_top_p != 1.0 and sample.rollout_top_p_token_ids is None:
        raise ConfigError(
            f"--rollout-top-p is {args.rollout_top_p}, but the engine's answers hold no top-p token sets, which slime "
            "needs for training (a stock sglang-router drops the request for them); use --rollout-top-p 1.0"
        )


def warn_of_fan_out(args: RolloutArgs, runtime: Runtime, most: int) -> None:
    """Say once that slime's own reward normalisation mixes groups when executions give several Samples."""
    normalises = args.advantage_estimator in GROUP_NORMALISING and args.rewards_normalization
    if most > 1 and normalises and args.custom_reward_post_process_path is None:
        runtime.warn_once(
            "an execution gave several Samples: slime's reward normalisation under --advantage-estimator "
            f"{args.advantage_estimator} then takes the whole batch for one group; give it a function that groups by "
            "Sample.group_index as --custom-reward-post-process-path",
        )
