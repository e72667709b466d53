"""The places that executions run in: a runner of Agent Lightning's and an agent for each."""

from __future__ import annotations

from typing import Any, Literal

from slime_agl.errors import ConfigError
from slime_agl.lightning._agl import LitAgent, LitAgentRunner
from slime_agl.lightning.agents import Agents, is_async
from slime_agl.lightning.threads import ThreadedAgent
from slime_agl.lightning.tracer import RoutingTracer

Mode = Literal["auto", "async", "thread"]


class Slot:
    """One place, used by one attempt at a time.

    The runner lives as long as the slot: agents reach their tracer by a weak reference to it.
    """

    def __init__(self, number: int, slots: Slots) -> None:
        self.number = number
        self._slots = slots
        self._agent: LitAgent[Any] | None = None
        self._runner: LitAgentRunner[Any] | None = None

    def runner(self, store: Any) -> LitAgentRunner[Any]:
        """The slot's runner, which will talk to `store`. Raises what the user's class, factory or copying raises."""
        if self._runner is None:
            self._agent = self._slots.agent()
            self._runner = LitAgentRunner(self._slots.tracer, max_rollouts=1, heartbeat_interval=0)
            self._runner.init(self._agent)
        self._runner.init_worker(self.number, store)
        return self._runner

    @property
    def thread_left(self) -> bool:
        """Whether a thread of the agent runs although nobody waits for it."""
        return isinstance(self._agent, ThreadedAgent) and self._agent.left_behind

    async def thread_ended(self, seconds: float) -> None:
        """Wait a while for such a thread."""
        if isinstance(self._agent, ThreadedAgent):
            await self._agent.thread_ended(seconds)

    def rest(self, store: Any) -> None:
        """Between two attempts. The runner would hold the last one, with its task and its spans, until the next."""
        if self._runner is not None:
            self._runner.init_worker(self.number, store)

    def renew(self) -> None:
        """Give what runs on its agent and its runner for good, and have new ones next time."""
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

    def agent(self) -> LitAgent[Any]:
        agent = self._agents.take()
        return ThreadedAgent(agent) if self._threaded else agent

    def slots(self, first: int, count: int) -> list[Slot]:
        """Slots whose numbers begin at `first`, the lowest one last."""
        return [Slot(number, self) for number in range(first + count - 1, first - 1, -1)]
