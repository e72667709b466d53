"""The entry point that slime calls."""

from __future__ import annotations

from typing import Any

from slime_agl.assemble import live_runtime, shutdown
from slime_agl.config import Config
from slime_agl.executor.workshop import Workshop
from slime_agl.host import RolloutArgs, RolloutFnEvalOutput, RolloutFnTrainOutput
from slime_agl.rollout.admission import Admission, Ahead, Batchwise
from slime_agl.rollout.ending import Ending, GoOn, Park, PutBack
from slime_agl.rollout.evaluate import evaluate
from slime_agl.rollout.lasting import Lasting
from slime_agl.rollout.pool import Pool
from slime_agl.rollout.recorder import Books
from slime_agl.rollout.refusals import check_generate_functions, check_supported, warn
from slime_agl.rollout.tables import show_conversations
from slime_agl.rollout.train import TrainStep
from slime_agl.runtime import Runtime

__all__ = ["generate", "shutdown"]


def generate(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Run the agent for one training step, or over the eval datasets: slime's `--rollout-function-path`.

    args: slime's Namespace with `args.agl`. rollout_id: the step's number.
    Training returns `rollout_batch_size` groups of `n_samples_per_prompt` entries, ordered by sample
    index; an entry is a Sample or, if any execution of the batch gave several, a list of Samples
    that share `rollout_id`. On return nothing is in flight at the engine, except under `agl.async`.

    Raises:
        ConfigError: a flag, a key of `agl:` or a data row has to be changed; an execution gave several Samples and
            slime would mix their groups.
        EngineUnavailable: the router does not answer.
        AgentError: no execution works; carries the first traceback.
        RewardError: no execution of the first batch has a reward and no option gives one, or an option fails.
        InvariantError: a token invariant broke.
        TeacherError: a teacher of `agl.teacher` does not answer, or its scores cannot be those of the Samples.
    """
    config = Config.read(getattr(args, "agl", None))
    read = RolloutArgs.read(args)
    check_supported(read, config)
    workshop = Workshop(config, read)
    runtime = live_runtime(config, read)
    lasting = Lasting.of(runtime, read)
    check_generate_functions(read, lasting.register, evaluation=evaluation)
    books = Books(runtime, read, rollout_id, evaluation=evaluation)

    async def step() -> RolloutFnTrainOutput | RolloutFnEvalOutput:
        try:
            return await work()
        finally:
            await books.settle()

    async def work() -> RolloutFnTrainOutput | RolloutFnEvalOutput:
        await runtime.equip(vars(read.raw))
        await runtime.begin_step(rollout_id, read.rollout_temperature, read.rollout_top_p)
        executor = workshop.executor(runtime, lasting.register, rollout_id, evaluation=evaluation)
        if evaluation:
            return await evaluate(read, executor, lasting.eval_prompts, books, lasting.brake)
        warn(read, lasting.register, config)
        if executor.teachers is not None:
            await executor.teachers.prove()
        train = TrainStep(
            args=read,
            number=rollout_id,
            runtime=runtime,
            executor=executor,
            lasting=lasting,
            books=books,
            data_source=data_source,
            admission=_admission(config, read, rollout_id),
            ending=_ending(config, read, runtime, lasting.pool),
        )
        return await train.run()

    try:
        output = runtime.run(step())
    finally:
        books.close()
    kind = "eval" if evaluation else "rollout"
    lasting.telemetry.record({**(output.metrics or {}), f"{kind}/step": rollout_id})
    show_conversations(args, config.tables, rollout_id, output, runtime.renderer.decode, evaluation=evaluation)
    if not evaluation and hasattr(data_source, "step_ended"):
        data_source.step_ended(rollout_id, lasting.outstanding)
    return output


def _admission(config: Config, args: RolloutArgs, step: int) -> Admission:
    if not config.async_.enabled:
        return Batchwise(args.rollout_batch_size, args.over_sampling_batch_size)
    staleness = config.async_.max_staleness
    steps_to_come = staleness if args.num_rollout is None else args.num_rollout - 1 - step
    return Ahead(args.rollout_batch_size, step, staleness, left=max(0, steps_to_come))


def _ending(config: Config, args: RolloutArgs, runtime: Runtime, pool: Pool) -> Ending:
    if config.async_.enabled:
        return GoOn(pool)
    return Park(runtime, pool) if args.partial_rollout else PutBack(runtime, pool)
