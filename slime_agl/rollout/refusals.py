"""Refuse combinations of options that slime's trainer or this package cannot handle, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from slime_agl.config import Config
from slime_agl.config.teacher import is_url, teachers
from slime_agl.errors import ConfigError
from slime_agl.executor.fan_out import mixes_groups, passrate_counts_samples
from slime_agl.executor.register import Register
from slime_agl.host import RolloutArgs
from slime_agl.host.defaults import (
    CUSTOM_GENERATE,
    CUSTOM_RM,
    GAE,
    REWARD_POST_PROCESS,
    ROLLOUT_FUNCTION,
    SEGMENT_REDUCER,
    SLIMES_DISTILLATION,
    TURNS,
)
from slime_agl.host.trainer import TrainerArgs


def check_supported(args: RolloutArgs, config: Config, *, slimes_loop: bool = False) -> None:
    """Check slime's options before anything starts. slimes_loop: slime calls `slime_agl.generate.generate`.

    Raises:
        ConfigError: names every problem.
    """
    if found := list(problems(args, config, slimes_loop=slimes_loop)):
        raise ConfigError("\n".join(found))


def problems(args: RolloutArgs, config: Config, *, slimes_loop: bool = False) -> Iterator[str]:
    """Options that would stop a run or train something wrong, with the flag to change."""
    trainer = args.trainer
    yield from _modes(args, config)
    yield from _external(args, config)
    yield from _estimator(args, trainer, slimes_loop=slimes_loop)
    yield from _advantages(args, trainer, config)
    yield from _loss_unit(trainer, config)
    yield from _fixed_batches(trainer, config, slimes_loop=slimes_loop)
    yield from _distillation(args, trainer, config)


def cautions(args: RolloutArgs, config: Config) -> Iterator[str]:
    """Options that work, but not in every case or not as expected."""
    trainer = args.trainer
    if config.external and config.agent:
        yield f"agl.agent is {config.agent}, and is not run: the runners of agl.store bring their own agent"
    if config.teacher is not None and (args.rollout_temperature != 1 or args.rollout_top_p != 1):
        yield (
            f"agl.teacher scores at temperature 1 over all tokens, as SGLang does, and slime compares that with the "
            f"policy at --rollout-temperature {args.rollout_temperature:g} and --rollout-top-p {args.rollout_top_p:g}: "
            "sampled so, the policy will match the teacher sampled at 1. --opd-type megatron scores both alike"
        )
    if mixes_groups(args):
        yield (
            f"--custom-reward-post-process-path is not set: under --advantage-estimator {args.advantage_estimator} "
            "slime normalises rewards by position, so the first execution that gives several Samples will stop the "
            "run, and masked executions count as reward 0; pass --custom-reward-post-process-path "
            f"{REWARD_POST_PROCESS}"
        )
    if trainer.custom_pg_loss_reducer_function_path == SEGMENT_REDUCER and trainer.custom_tis_function_path:
        yield (
            f"--custom-tis-function-path {trainer.custom_tis_function_path} may reject tokens; {SEGMENT_REDUCER} then "
            "divides by those that are left, where slime's default divides by all trained ones"
        )
    if trainer.estimator == "ppo" and trainer.kl_coef and not trainer.use_rollout_logprobs:
        yield (
            f"--kl-coef {trainer.kl_coef} under --advantage-estimator ppo also counts the KL of tokens that the model "
            "did not sample, such as tool results: slime's estimator takes no mask. --use-kl-loss --kl-loss-coef "
            "leaves them out"
        )
    if passrate_counts_samples(args):
        yield (
            "--log-passrate stops slime's trainer at the first batch in which an execution gives several Samples; "
            "leave it out if your agent branches or has subagents"
        )


def _modes(args: RolloutArgs, config: Config) -> Iterator[str]:
    if args.rollout_top_p != 1.0 and config.sampling == "agent":
        yield (
            f"--rollout-top-p is {args.rollout_top_p}, so training replays the sets that the trainer's top_p kept, but "
            "agl.sampling lets agents choose theirs; use agl.sampling: trainer, or --rollout-top-p 1.0"
        )
    if config.async_.enabled and args.colocate:
        yield (
            "agl.async.enabled lets agents go on while the trainer trains, which --colocate leaves no engine for; "
            "give the engines GPUs of their own, or use --partial-rollout instead"
        )
    if config.async_.enabled and args.partial_rollout:
        yield "--partial-rollout parks what a step does not need, agl.async.enabled lets it go on; choose one of them"


def _external(args: RolloutArgs, config: Config) -> Iterator[str]:
    if config.external and args.partial_rollout and args.eval_datasets:
        yield (
            "--partial-rollout leaves parked agents in the runners of agl.store, and an evaluation would wait for them "
            "for ever; leave --partial-rollout or the evaluation out, or set agl.async for train_async.py"
        )


def _estimator(args: RolloutArgs, trainer: TrainerArgs, *, slimes_loop: bool) -> Iterator[str]:
    if trainer.needs_trained_tokens and args.partial_rollout and args.mask_offpolicy_in_partial_rollout:
        yield (
            "--mask-offpolicy-in-partial-rollout can mask all of a Sample, at which --advantage-estimator "
            "reinforce_plus_plus stops slime; leave the flag out, or use reinforce_plus_plus_baseline"
        )
    if trainer.needs_trained_tokens and slimes_loop:
        yield (
            "a failed execution is a masked Sample, at which --advantage-estimator reinforce_plus_plus stops slime; "
            f"use --rollout-function-path {ROLLOUT_FUNCTION}, which replaces its group, or reinforce_plus_plus_baseline"
        )
    if trainer.estimator == "ppo" and trainer.kl_coef and trainer.use_rollout_logprobs:
        yield (
            f"--kl-coef {trainer.kl_coef} with --use-rollout-logprobs under --advantage-estimator ppo takes the KL of "
            "tokens that the model did not sample, such as tool results, from a logprob of 0; leave "
            "--use-rollout-logprobs out, or use --use-kl-loss --kl-loss-coef in place of --kl-coef"
        )


def _advantages(args: RolloutArgs, trainer: TrainerArgs, config: Config) -> Iterator[str]:
    path, estimator = trainer.custom_advantage_function_path, trainer.advantage_estimator
    if config.credit.span == "turn":
        if path is None:
            yield (
                "agl.credit.span is turn, but slime's estimators take one reward per Sample; pass "
                f"--custom-advantage-function-path {TURNS}, or {GAE} under --advantage-estimator ppo"
            )
        if args.custom_reward_post_process_path is None:
            yield (
                "agl.credit.span is turn, but --custom-reward-post-process-path is not set, so no turn's credit would "
                f"reach the trainer; pass --custom-reward-post-process-path {REWARD_POST_PROCESS}"
            )
    if path == GAE and estimator != "ppo":
        yield (
            f"--custom-advantage-function-path {GAE} needs a critic, and --advantage-estimator {estimator} trains "
            f"none; pass --advantage-estimator ppo, or {TURNS}"
        )
    if path == GAE and config.credit.discount != 1:
        yield (
            f"agl.credit.discount is {config.credit.discount:g}, and slime's --gamma discounts in {GAE}, so rewards "
            "would be discounted twice; leave agl.credit.discount out, and set agl.advantage.unit: turn to discount by "
            "turn"
        )
    if path == TURNS and estimator == "ppo":
        yield (
            f"--custom-advantage-function-path {TURNS} uses no values, but --advantage-estimator ppo trains a critic "
            f"for them; pass {GAE}, or --advantage-estimator grpo"
        )
    if path in (GAE, TURNS) and estimator == "ppo" and trainer.megatron_config_path:
        yield (
            f"under --megatron-config-path slime's critic ignores --custom-advantage-function-path {path} and learns "
            "the returns of slime's own estimator; set both roles by flags, or leave the function out"
        )


def _loss_unit(trainer: TrainerArgs, config: Config) -> Iterator[str]:
    by_token, path, unit = (
        trainer.calculate_per_token_loss,
        trainer.custom_pg_loss_reducer_function_path,
        config.loss_unit,
    )
    if path == SEGMENT_REDUCER and by_token:
        yield (
            f"--calculate-per-token-loss divides the means of {SEGMENT_REDUCER} by the number of tokens again; leave "
            "one of them out"
        )
    elif unit == "token" and not by_token:
        yield "agl.loss_unit is token, and slime would count each execution once; pass --calculate-per-token-loss"
    elif unit in ("execution", "segment") and by_token:
        yield f"agl.loss_unit is {unit}, and --calculate-per-token-loss counts each token once; leave the flag out"
    elif unit == "segment" and path != SEGMENT_REDUCER:
        yield (
            f"agl.loss_unit is segment, and --custom-pg-loss-reducer-function-path is {path or 'not set'}; pass "
            f"--custom-pg-loss-reducer-function-path {SEGMENT_REDUCER}"
        )
    elif unit in ("execution", "token") and path is not None:
        yield f"agl.loss_unit is {unit}, and --custom-pg-loss-reducer-function-path is {path}; leave the flag out"


def _distillation(args: RolloutArgs, trainer: TrainerArgs, config: Config) -> Iterator[str]:
    scored = trainer.use_opd and trainer.opd_type == "sglang"
    if config.teacher is None:
        if scored:
            yield (
                "--use-opd --opd-type sglang needs teacher_log_probs on every Sample, and slime's own functions for it "
                "take each Sample's reward for the teacher's answer, which agents' Samples do not have; set "
                "agl.teacher to the teacher's URL, or use --opd-type megatron"
            )
        return
    own_function = trainer.custom_advantage_function_path not in (None, GAE, TURNS)
    if trainer.use_opd and not scored:
        yield (
            f"agl.teacher is set, but --opd-type is {trainer.opd_type}, whose own teacher would take its place; pass "
            "--opd-type sglang, or leave agl.teacher out"
        )
    elif not scored and not own_function:
        yield (
            "agl.teacher is set, but slime reads a teacher's logprobs only with --use-opd --opd-type sglang; pass "
            "both, or leave agl.teacher out"
        )
    named = [teacher for teacher in teachers(config.teacher).values() if not is_url(teacher)]
    if named and args.colocate and args.partial_rollout:
        yield (
            f"agl.teacher names {named[0]}, which may still score a Sample when --partial-rollout parks the rest and "
            "--colocate offloads it; give the teacher GPUs of its own and name its URL, or leave --partial-rollout out"
        )
    for flag, path, mend in (
        ("--custom-rm-path", args.custom_rm_path, CUSTOM_RM),
        ("--custom-reward-post-process-path", args.custom_reward_post_process_path, REWARD_POST_PROCESS),
    ):
        if (path or "").startswith(SLIMES_DISTILLATION):
            yield (
                f"{flag} is {path}, which takes the place of rewards, and agl.teacher fills teacher_log_probs without "
                f"it; pass {flag} {mend}"
            )


def _fixed_batches(trainer: TrainerArgs, config: Config, *, slimes_loop: bool) -> Iterator[str]:
    schedule = trainer.schedule
    if not trainer.fixed_batches or (schedule is not None and schedule.size * schedule.align == 1):
        return
    mend = "pass --use-dynamic-batch-size --max-tokens-per-gpu N"
    if slimes_loop:
        if config.generate_returns == "list":
            yield (
                "agl.generate_returns: list lets an execution give several Samples, and slime's fixed micro-batches "
                f"stop at a number that does not divide; {mend}"
            )
    elif trainer.megatron_config_path:
        yield (
            "slime's fixed micro-batches stop at a number of Samples that does not divide, and under "
            f"--megatron-config-path it is not known here which do; {mend}"
        )
    elif trainer.needs_trained_tokens:
        yield (
            "an execution that gives several Samples upsets slime's fixed micro-batches, and --advantage-estimator "
            f"reinforce_plus_plus takes no masked Samples that fill them; {mend}"
        )


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


def warn(args: RolloutArgs, register: Register, config: Config) -> None:
    """Log each caution once."""
    for caution in cautions(args, config):
        register.warn_once(caution)
