"""What slime calls."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from slime_agl.assemble import live_runtime, shutdown
from slime_agl.config import Config
from slime_agl.host import RolloutArgs, RolloutFnEvalOutput, RolloutFnTrainOutput
from slime_agl.reward import load_reward_function
from slime_agl.rollout.evaluate import evaluate
from slime_agl.rollout.executions import Executor
from slime_agl.rollout.record import Recorder
from slime_agl.rollout.rewards import Rewarder
from slime_agl.rollout.samples import SampleBuilder
from slime_agl.rollout.support import check_supported, warn_of_partial_rollout, warn_of_positions
from slime_agl.rollout.tally import Tally
from slime_agl.rollout.tasks import task_builder
from slime_agl.rollout.train import TrainStep
from slime_agl.runtime import Runtime

__all__ = ["generate", "shutdown"]


def generate(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Run the agent for one training step, or over the eval datasets: slime's `--rollout-function-path`.

    args: slime's Namespace with `args.agl`. rollout_id: number of the step.
    Training returns `rollout_batch_size` groups of `n_samples_per_prompt` entries, ordered by sample
    index; an entry is a Sample, or, when any execution of the batch fanned out, a list of Samples
    that share `rollout_id`. When it returns, nothing is in flight at the engine.

    Raises:
        ConfigError: a flag, a key of `agl:` or a data row has to be changed; an execution gave several Samples and
            slime would mix their groups.
        EngineUnavailable: the router does not answer.
        AgentError: no execution works; carries the first traceback.
        RewardError: an execution has no reward and no option gives it one.
        InvariantError: a token invariant broke.
    """
    config = Config.read(getattr(args, "agl", None))
    read = RolloutArgs.read(args)
    check_supported(read, config)
    tasks, reward = task_builder(config.task), load_reward_function(config.reward)
    runtime = live_runtime(config, read)
    warn_of_partial_rollout(read, runtime)
    tally = Tally("eval" if evaluation else "rollout")
    recorder = Recorder(config, read, runtime.renderer, "eval" if evaluation else "step", rollout_id)
    rewarder = Rewarder(read, reward, config.credit)

    async def step() -> RolloutFnTrainOutput | RolloutFnEvalOutput:
        begun = await runtime.begin_step(rollout_id, read.rollout_temperature, read.rollout_top_p)
        executor = Executor(
            runtime, read, begun, mode="val" if evaluation else "train", tasks=tasks,
            builder=SampleBuilder(read, runtime.renderer), rewarder=rewarder, tally=tally, recorder=recorder,
        )  # fmt: skip
        if evaluation:
            return await evaluate(read, executor, runtime.eval_prompts, tally)
        warn_of_positions(read, runtime)
        return await TrainStep(read, executor, rewarder, tally, data_source).run()

    return _closing(runtime, step, recorder)


def _closing(runtime: Runtime, step: Callable[[], Coroutine[Any, Any, Any]], recorder: Recorder) -> Any:
    try:
        return runtime.run(step())
    finally:
        recorder.close()
