"""Agent Lightning, embedded in a runtime: store, resources, spans and runners."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.lightning._agl import LLM, PromptTemplate, ProxyLLM
from slime_agl.lightning.agents import load_agents
from slime_agl.lightning.attempts import AttemptPort
from slime_agl.lightning.exits import SharedLoop
from slime_agl.lightning.outcome import STATUSES, Lane, RolloutOutcome
from slime_agl.lightning.runners import RunnerPool
from slime_agl.lightning.slots import Mode
from slime_agl.lightning.store import ReleasingStore
from slime_agl.lightning.tracer import RoutingTracer

if TYPE_CHECKING:
    from slime_agl.lightning.dashboard import Dashboard

T = TypeVar("T")
MAIN_LLM = "main_llm"


class Lightning:
    """Store, resources, spans and runners of one process, on the event loop that calls `start`.

    agent: anything `load_agents` accepts. tokens: write token ids and logprobs into turn spans.
    resource_name: of the model being trained. templates: f-string prompt templates that agents get beside it, by
    resource name.
    frozen: endpoints of models that are not trained (`http://host:port/v1`), by resource name; agents call
    them directly, so their answers are not recorded.
    dashboard_port: loopback port of Agent Lightning's dashboard, None for none.
    The rest is as in RunnerPool. sink: takes the turns that the gateway commits; it alone is thread-safe.
    """

    def __init__(
        self,
        agent: object,
        *,
        mode: Mode,
        max_concurrency: int,
        timeout_seconds: float | None,
        max_attempts: int,
        end_leftovers: bool = True,
        tokens: bool = False,
        templates: Mapping[str, str] | None = None,
        frozen: Mapping[str, str] | None = None,
        resource_name: str = MAIN_LLM,
        dashboard_port: int | None = None,
    ) -> None:
        if resource_name in (frozen or ()):
            raise ConfigError(f"a frozen model is named {resource_name}, which is the model being trained; rename it")
        if taken := sorted({resource_name, *(frozen or ())} & set(templates or ())):
            raise ConfigError(
                f"agl.templates names {taken[0]}, which is the resource of a model; rename the template, or set "
                "agl.resource_name"
            )
        self._resource_name = resource_name
        self._agents = load_agents(agent)
        self._make_pool = partial(
            RunnerPool,
            mode=mode,
            max_concurrency=max_concurrency,
            timeout_seconds=timeout_seconds,
            max_attempts=max_attempts,
            end_leftovers=end_leftovers,
        )
        self._templates = {
            name: PromptTemplate(template=text, engine="f-string") for name, text in (templates or {}).items()
        }
        self._frozen = {name: LLM(endpoint=url, model=name, api_key="none") for name, url in (frozen or {}).items()}
        self._tracer = RoutingTracer(tokens=tokens)
        self.sink = self._tracer.spans
        self._snapshots: dict[str, int] = {}
        self._uses: Counter[str] = Counter()
        self._step = -1
        self._pool: RunnerPool | None = None
        self._dashboard_port = dashboard_port
        self._dashboard: Dashboard | None = None
        self.store: ReleasingStore | None = None

    @staticmethod
    def new_loop() -> asyncio.AbstractEventLoop:
        """Make the event loop to start this on; no agent can stop it."""
        return SharedLoop()

    async def start(self, *, hopeless: Callable[[str], None] = lambda reason: None) -> None:
        """Start the store and the pool. hopeless: called from another thread with why this loop will never run again.

        Raises:
            ConfigError: see RunnerPool; or the dashboard's port is taken.
        """
        store = ReleasingStore()
        pool = self._make_pool(self._agents, store, self._tracer, hopeless=hopeless)
        await pool.start()
        self.store, self._pool = store, pool
        if self._dashboard_port is not None:
            from slime_agl.lightning.dashboard import Dashboard  # imports a web server

            dashboard = Dashboard(store, self._dashboard_port)
            await dashboard.start()
            self._dashboard = dashboard

    def exited(self, error: BaseException) -> None:
        """Handle SystemExit or KeyboardInterrupt from the event loop. Called on its thread, between two rounds."""
        _started(self._pool).exits.note(error)

    async def pause(self, lane: Lane) -> None:
        """Start no more agents of a lane and stop the deadlines of running ones."""
        _started(self._pool).pause(lane)

    async def resume(self, lane: Lane) -> None:
        """End a pause."""
        _started(self._pool).resume(lane)

    async def close(self) -> None:
        """Cancel what runs and release the active tracer. Idempotent; may be called without `start`."""
        if self._dashboard is not None:
            await self._dashboard.stop()
            self._dashboard = None
        if self._pool is not None:
            await self._pool.close()
            await self._agents.close()

    async def publish(
        self,
        step: int,
        *,
        endpoint: str,
        model: str,
        sampling_parameters: Mapping[str, object],
    ) -> str:
        """Publish the resources of a step; returns their id, for `run`.

        endpoint: `http://host:port/v1`; each attempt gets its own address below it. A step may publish several times
        (training and evaluation), and steps may come out of order: train_async.py evaluates a step after generating
        the next. Resources of other steps are removed once the last rollout that uses them has ended.
        """
        store = _started(self.store)
        _started(self._pool).calls.expect(endpoint)
        main = ProxyLLM(endpoint=endpoint, model=model, sampling_parameters=dict(sampling_parameters))
        # The model being trained comes first: functional agents take the first LLM they see.
        resources = {self._resource_name: main, **self._frozen, **self._templates}
        self._step = step
        snapshot = await store.add_resources(resources)
        self._snapshots[snapshot.resources_id] = step
        for resources_id in list(self._snapshots):
            await self._retire(resources_id)
        return snapshot.resources_id

    async def run(
        self,
        task: object,
        *,
        lane: Lane,
        resources_id: str,
        port: AttemptPort,
        max_attempts: int | None = None,
    ) -> RolloutOutcome:
        """Run one rollout; see RunnerPool.run.

        Raises:
            SlimeAglError: the resources were never published, or belonged to an earlier step and are gone.
        """
        pool = _started(self._pool)
        if resources_id not in self._snapshots:
            raise SlimeAglError(
                f"resources {resources_id} are not published; the latest step is {self._step}, "
                "run with the id that publish returned for it"
            )
        self._uses[resources_id] += 1
        try:
            return await pool.run(task, lane=lane, resources_id=resources_id, port=port, max_attempts=max_attempts)
        finally:
            self._uses[resources_id] -= 1
            await self._retire(resources_id)

    def take_ended(self) -> list[str]:
        """Rollouts that have ended since the last call, cancelled ones included; `release` them later."""
        return _started(self._pool).take_ended()

    async def release(self, rollout_ids: Iterable[str]) -> None:
        """Forget finished rollouts with their attempts and spans. Outcomes already returned stay intact."""
        await _started(self.store).forget(rollout_ids)

    async def metrics(self) -> dict[str, float]:
        """Counts since `start`, and the present size of the store."""
        pool, store = _started(self._pool), await _started(self.store).statistics()
        return {
            **{f"attempts/{status}": float(pool.attempts[status]) for status in STATUSES},
            "abandoned_threads": float(pool.abandoned_threads),
            "abandoned_tasks": float(pool.abandoned_tasks),
            "leaked_tasks": float(pool.leaked_tasks),
            "mixed_calls": float(pool.calls.count),
            "exits_caught": float(pool.exits.count),
            "blocked_loops": float(pool.watchdog.count),
            "blocked_seconds": pool.watchdog.seconds_blocked,
            "ended_processes": float(pool.processes.ended if pool.processes else 0),
            "left_processes": float(pool.processes.left if pool.processes else 0),
            "spans": float(pool.spans),
            "spans_dropped": float(self.sink.dropped),
            "store/rollouts": float(store.get("total_rollouts", 0)),
            "store/spans": float(store.get("total_spans", 0)),
            "store/span_bytes": float(store.get("total_span_bytes", 0)),
            **self._agents.metrics(),
        }

    async def _retire(self, resources_id: str) -> None:
        """Forget an unused snapshot unless it belongs to the latest published step."""
        step = self._snapshots.get(resources_id)
        if step is not None and step != self._step and self._uses[resources_id] == 0:
            del self._snapshots[resources_id], self._uses[resources_id]
            await _started(self.store).forget_resources(resources_id)


def _started(part: T | None) -> T:
    if part is None:
        raise SlimeAglError("Lightning is not started; call start first")
    return part
