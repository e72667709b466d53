"""Slots for executions, each with a runner of Agent Lightning's and an agent."""

from __future__ import annotations

from typing import Literal

from slime_agl.errors import ConfigError
from slime_agl.lightning._agl import AnyAgent, LightningStore, LitAgentRunner
from slime_agl.lightning.agents import Agents, is_async
from slime_agl.lightning.threads import ThreadedAgent
from slime_agl.lightning.tracer import RoutingTracer

Mode = Literal["auto", "async", "thread"]


class Slot:
    """One slot, used by one attempt at a time.

    Keeps its runner alive: agents reach their tracer through a weak reference to it.
    """

    def __init__(self, number: int, slots: Slots) -> None:
        self.number = number
        self._slots = slots
        self._agent: AnyAgent | None = None
        self._runner: LitAgentRunner | None = None

    def runner(self, store: LightningStore) -> LitAgentRunner:
        """Return the slot's runner, bound to `store`. Raises whatever the user's class, factory or copying raises."""
        if self._runner is None:
            self._agent = self._slots.agent()
            self._runner = LitAgentRunner(self._slots.tracer, max_rollouts=1, heartbeat_interval=0)
            self._runner.init(self._agent)
        self._runner.init_worker(self.number, store)
        return self._runner

    @property
    def thread_left(self) -> bool:
        """True if a thread of the agent still runs although its rollout was cancelled."""
        return isinstance(self._agent, ThreadedAgent) and self._agent.left_behind

    async def thread_ended(self, seconds: float) -> None:
        """Wait up to `seconds` for such a thread."""
        if isinstance(self._agent, ThreadedAgent):
            await self._agent.thread_ended(seconds)

    def rest(self, store: LightningStore) -> None:
        """Release the last attempt, whose task and spans the runner would otherwise keep until the next one."""
        if self._runner is not None:
            self._runner.init_worker(self.number, store)

    def renew(self) -> None:
        """Drop agent and runner, which something still uses, and make new ones next time."""
        self._agent = self._runner = None


class Slots:
    """Makes slots. mode: see RunnerPool.

    Raises:
        ConfigError: a blocking agent is to run on the event loop.
    """

    def __init__(self, agents: Agents, mode: Mode, tracer: RoutingTracer) -> None:
        asynchronous = is_async(agents.first)
        if mode == "async" and not asynchronous:
            raise ConfigError(
                "runners.mode is 'async' but the agent is not; a blocking agent would stop every other one. "
                "Use 'auto' or 'thread', or make the agent async"
            )
        self._agents, self._threaded = agents, mode == "thread" or not asynchronous
        self.tracer = tracer

    def agent(self) -> AnyAgent:
        agent = self._agents.take()
        return ThreadedAgent(agent) if self._threaded else agent

    def slots(self, first: int, count: int) -> list[Slot]:
        """Slots whose numbers begin at `first`, the lowest one last."""
        return [Slot(number, self) for number in range(first + count - 1, first - 1, -1)]
