"""A harness as an Agent Lightning agent.

>>> agent = Harness("codex", sandbox="bwrap")
>>> await runner.step({"prompt": "Fix the tests.", "tests": "..."}, resources={"main_llm": llm})
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slime_agl.config.harness import Ending, HarnessConfig
from slime_agl.config.sandbox import SandboxConfig
from slime_agl.errors import AgentError, ConfigError
from slime_agl.harness.catalog import program_of
from slime_agl.harness.environment import Access
from slime_agl.harness.phases import Phases, Tell
from slime_agl.harness.places import Places
from slime_agl.harness.run import Order, Ran, grade_again, run_program
from slime_agl.harness.task import Task, task_of
from slime_agl.lightning import own_attempt
from slime_agl.lightning._agl import LLM, LitAgent, ProxyLLM
from slime_agl.sandbox.reach import Serving

__all__ = ["Harness"]

logger = logging.getLogger(__name__)

SPAN = "slime_agl.harness"
SHOWN = 20_000


class Harness(LitAgent[Any]):
    """Runs a program in a sandbox for each task, and rewards it by the task's tests.

    harness, command: one of them, as in HarnessConfig, whose further fields are accepted by name. sandbox: the section
    `agl.sandbox`, or the name of a backend. tasks: folder of Harbor directories that rows name. zero_reward: of what is
    not graded (`zero`). serving: see Places. tell: hears of phases.
    """

    def __init__(
        self,
        harness: str = "",
        *,
        sandbox: SandboxConfig | str = "bwrap",
        tasks: Path | None = None,
        zero_reward: float = 0.0,
        serving: Callable[[], Serving | None] = lambda: None,
        tell: Tell | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.config = HarnessConfig(harness=harness, **settings)
        program_of(self.config)  # refuses an unknown name at the start
        config = sandbox if isinstance(sandbox, SandboxConfig) else SandboxConfig(backend=sandbox)
        self.places = Places(config, serving)
        self._tasks, self._retries, self._zero, self._tell = tasks, config.retries, zero_reward, tell

    async def aclose(self) -> None:
        """End the sandboxes of this process. Idempotent."""
        await self.places.stop()

    def metrics(self) -> dict[str, float]:
        """Counts of the sandboxes of this process."""
        return self.places.metrics()

    async def rollout_async(self, task: Any, resources: Mapping[str, Any], rollout: Any) -> float | None:
        """Run the program on a task; returns the reward, None if it gives its own.

        Raises:
            SandboxError: the infrastructure failed. AgentError: the program failed, if the settings say so.
        """
        made = task_of(task, self._tasks)
        phases = Phases(self._tell)
        order = self._order(made, _access(resources, rollout), rollout)
        await self.places.start()
        ran = await run_program(self.places, order, phases, own_attempt.seal)
        return await self._judged(order, ran, phases)

    def _order(self, task: Task, access: Access, rollout: Any) -> Order:
        config = self.config
        seconds = config.timeout_seconds if task.seconds is None else min(config.timeout_seconds, task.seconds)
        return Order(
            task=task,
            program=program_of(config, task.harness),
            access=access,
            seconds=seconds,
            env=config.env,
            events=config.reward == "agent",
            labels={"run": self.places.run, "attempt": rollout.attempt.attempt_id},
        )

    async def _judged(self, order: Order, ran: Ran, phases: Phases) -> float | None:
        ending, why = self._ending(ran, phases)
        diff, log = "", ""
        reward: float | None = None
        try:
            if ending == "fail":
                raise AgentError(
                    f"{order.program.name} on {order.task.name}: {why}; its output ends: {ran.log[-2000:]}"
                )
            if self.config.reward == "agent":
                return None
            if ending == "zero":
                reward = self._zero
            elif not order.task.tests:
                raise ConfigError(
                    f"the task {order.task.name} has no tests to grade it; give the row `tests` or a Harbor `task`, "
                    "or set agl.agent.reward to `agent`"
                )
            else:
                graded = await grade_again(self.places, order.task, ran.work, order.labels, phases, self._retries)
                reward, diff, log = graded.reward, graded.diff, graded.log
            return reward
        finally:
            own_attempt.note(SPAN, _attributes(order, ran, why, reward, diff, log))

    def _ending(self, ran: Ran, phases: Phases) -> tuple[Ending, str]:
        """How an ended program is judged, and what befell it; the first that applies."""
        if ran.work.too_large:
            phases.count("work_too_large")
            return "zero", "it changed more than can be carried to the grader"
        if ran.ended == "timeout":
            phases.count("timeouts")
            return self.config.on_timeout, "it did not end by its deadline"
        if ran.ended == "exit":
            phases.count(f"exits/{ran.meaning}")
            return self.config.on_exit, f"it ended with status {ran.status} ({ran.meaning})"
        if not ran.changed:
            phases.count("no_diff")
            return self.config.on_no_diff, "it changed nothing"
        return "grade", ""


def _access(resources: Mapping[str, Any], rollout: Any) -> Access:
    """The attempt's own endpoint and key. Raises ConfigError without a model."""
    for resource in resources.values():
        if isinstance(resource, ProxyLLM):
            endpoint = resource.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
            return Access(endpoint=endpoint, key=resource.api_key or "none", model=resource.model)
    for resource in resources.values():
        if isinstance(resource, LLM):
            return Access(endpoint=resource.endpoint, key=resource.api_key or "none", model=resource.model)
    raise ConfigError(f"a harness needs a model among its resources; there are {', '.join(resources) or 'none'}")


def _attributes(order: Order, ran: Ran, why: str, reward: float | None, diff: str, log: str) -> dict[str, Any]:
    return {
        "harness.program": f"{order.program.name} {order.program.version}".rstrip(),
        "harness.task": order.task.name,
        "harness.status": -1 if ran.status is None else ran.status,
        "harness.why": why,
        "harness.changed": ran.changed,
        "harness.diff": diff[:SHOWN],
        "harness.tests": log,
        "harness.log": ran.log[-SHOWN:],
        **({"harness.reward": reward} if reward is not None else {}),
    }
