"""Make executors: the one place that joins the task, Samples and rewards of an execution."""

from __future__ import annotations

from slime_agl.config import Config
from slime_agl.execution import Watcher
from slime_agl.executor.columns import Columns, data_files
from slime_agl.executor.executor import Executor
from slime_agl.executor.register import Register
from slime_agl.executor.rewards import Rewarder
from slime_agl.executor.samples import SampleBuilder
from slime_agl.executor.tasks import TaskBuilder, task_builder
from slime_agl.executor.teachers import Teachers
from slime_agl.host import RolloutArgs
from slime_agl.reward import load_reward_function
from slime_agl.runtime import Runtime


class Workshop:
    """Makes executors from the settings alone, before any part starts.

    Raises:
        ConfigError: `agl.task` or `agl.reward` does not name a callable.
    """

    def __init__(self, config: Config, args: RolloutArgs) -> None:
        self._config, self._args = config, args
        columns = Columns(config.columns, list(data_files(args))) if config.columns else None
        self._tasks = task_builder(config.task, columns)
        self.rewarder = Rewarder(args, load_reward_function(config.reward), config.credit)

    def executor(
        self,
        runtime: Runtime,
        register: Register,
        step: int,
        *,
        evaluation: bool,
        bare: bool = False,
        tasks: TaskBuilder | None = None,
        max_attempts: int | None = None,
        watcher: Watcher | None = None,
    ) -> Executor:
        """The executor of a step. tasks: in place of `agl.task`; the rest is as in Executor."""
        return Executor(
            runtime=runtime,
            register=register,
            args=self._args,
            failure=self._config.failure,
            step=step,
            evaluation=evaluation,
            tasks=tasks or self._tasks,
            builder=SampleBuilder(self._args, runtime.renderer),
            rewarder=self.rewarder,
            teachers=None if evaluation else Teachers.of(runtime, self._args),
            bare=bare,
            max_attempts=max_attempts,
            watcher=watcher,
        )
