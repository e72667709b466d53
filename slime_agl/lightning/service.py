"""Agent Lightning, embedded: what a runtime holds of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.lightning._agl import LLM, PromptTemplate, ProxyLLM
from slime_agl.lightning.agents import load_agents
from slime_agl.lightning.attempts import AttemptPort
from slime_agl.lightning.exits import SharedLoop
from slime_agl.lightning.outcome import STATUSES, RolloutOutcome
from slime_agl.lightning.runners import RunnerPool
from slime_agl.lightning.slots import Mode
from slime_agl.lightning.spans import turn_span
from slime_agl.lightning.store import ReleasingStore
from slime_agl.lightning.tracer import RoutingTracer
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Turn

MAIN_LLM = "main_llm"


class Lightning:
    """Store, resources, spans and runners of one process, on the event loop that calls `start`.

    agent: anything `load_agents` accepts. tokens: whether turn spans carry token ids and logprobs.
    templates: f-string prompt templates that agents get beside the model, by resource name.
    frozen: endpoints of models that nobody trains (`http://host:port/v1`), by resource name; agents get
    them as they are, so their answers are recorded nowhere.
    dashboard_port: where Agent Lightning's dashboard is served on loopback, None for nowhere.
    The rest is as in RunnerPool. Only `turn_committed` may be called from other threads.
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
        dashboard_port: int | None = None,
    ) -> None:
        if MAIN_LLM in (frozen or ()):
            raise ConfigError(f"a frozen model is named {MAIN_LLM}, which is the model being trained; rename it")
        self._agents = load_agents(agent)
        self._limits: dict[str, Any] = {
            "mode": mode,
            "max_concurrency": max_concurrency,
            "timeout_seconds": timeout_seconds,
            "max_attempts": max_attempts,
            "end_leftovers": end_leftovers,
        }
        self._tokens = tokens
        self._templates = {
            name: PromptTemplate(template=text, engine="f-string") for name, text in (templates or {}).items()
        }
        self._frozen = {name: LLM(endpoint=url, model=name, api_key="none") for name, url in (frozen or {}).items()}
        self._tracer = RoutingTracer()
        self._snapshots: dict[str, int] = {}
        self._uses: Counter[str] = Counter()
        self._step = -1
        self._pool: RunnerPool | None = None
        self._dashboard_port = dashboard_port
        self._dashboard: Any = None
        self.store: ReleasingStore | None = None

    @staticmethod
    def new_loop() -> asyncio.AbstractEventLoop:
        """An event loop to start this on, which no agent can stop."""
        return SharedLoop()

    async def start(self, *, hopeless: Callable[[str], None] = lambda reason: None) -> None:
        """Make the store and the pool. hopeless: told, from another thread, why this event loop will not run again.

        Raises:
            ConfigError: see RunnerPool; or the dashboard's port is taken.
        """
        store = ReleasingStore()
        pool = RunnerPool(self._agents, store, self._tracer, hopeless=hopeless, **self._limits)
        await pool.start()
        self.store, self._pool = store, pool
        if self._dashboard_port is not None:
            from slime_agl.lightning.dashboard import Dashboard  # imports a web server

            dashboard = Dashboard(store, self._dashboard_port)
            await dashboard.start()
            self._dashboard = dashboard

    def exited(self, error: BaseException) -> None:
        """SystemExit or KeyboardInterrupt came out of the event loop. Called on its thread, between two rounds."""
        self._started(self._pool).exits.note(error)

    def pause(self, mode: Literal["train", "val"]) -> None:
        """Start no more agents of a mode, and stop the deadlines of those that run."""
        self._started(self._pool).pause(mode)

    def resume(self, mode: Literal["train", "val"]) -> None:
        """End a pause."""
        self._started(self._pool).resume(mode)

    async def close(self) -> None:
        """Cancel what runs and give the active tracer back. May be called twice, or without `start`."""
        if self._dashboard is not None:
            await self._dashboard.stop()
            self._dashboard = None
        if self._pool is not None:
            await self._pool.close()

    async def publish(
        self,
        step: int,
        *,
        endpoint: str,
        model: str,
        sampling_parameters: Mapping[str, Any],
    ) -> str:
        """Publish the resources of a step; returns their id, for `run`.

        endpoint: `http://host:port/v1`; each attempt gets its own address below it. A step may publish
        several times (training and evaluation), and steps need not come in order: train_async.py evaluates
        after one step when it has generated the next. Resources of other steps go when the last rollout that
        uses them has ended.
        """
        store = self._started(self.store)
        self._started(self._pool).calls.expect(endpoint)
        main = ProxyLLM(endpoint=endpoint, model=model, sampling_parameters=dict(sampling_parameters))
        # The model being trained comes first: functional agents take the first LLM they see.
        resources = {MAIN_LLM: main, **self._frozen, **self._templates}
        self._step = step
        snapshot = await store.add_resources(resources)
        self._snapshots[snapshot.resources_id] = step
        for resources_id in list(self._snapshots):
            await self._retire(resources_id)
        return snapshot.resources_id

    async def run(
        self,
        task: Any,
        *,
        mode: Literal["train", "val"],
        resources_id: str,
        port: AttemptPort,
        metadata: Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
    ) -> RolloutOutcome:
        """Run one rollout; see RunnerPool.run.

        Raises:
            SlimeAglError: the resources were never published, or belong to an earlier step and are gone.
        """
        pool = self._started(self._pool)
        if resources_id not in self._snapshots:
            raise SlimeAglError(
                f"resources {resources_id} are not published; the latest step is {self._step}, "
                "run with the id that publish returned for it"
            )
        self._uses[resources_id] += 1
        try:
            return await pool.run(
                task, mode=mode, resources_id=resources_id, port=port, metadata=metadata, max_attempts=max_attempts
            )
        finally:
            self._uses[resources_id] -= 1
            await self._retire(resources_id)

    def turn_committed(self, rollout_id: str, attempt_id: str, turn: Turn, ledger: Ledger) -> None:
        """Record a turn as a span of its attempt. Cheap; any thread; in order with what the agent emits.

        The ledger may grow on: what stands in it up to `turn` is read later.
        """
        buffer = self._tracer.buffer(rollout_id, attempt_id)
        if buffer is None or not buffer.append(
            partial(turn_span, turn, ledger, tokens=self._tokens, trace_id=buffer.trace_id)
        ):
            self._tracer.dropped += 1

    def take_ended(self) -> list[str]:
        """Rollouts that have ended since the last call, cancelled ones included; `release` is to follow some time."""
        return self._started(self._pool).take_ended()

    async def release(self, rollout_ids: Iterable[str]) -> None:
        """Forget finished rollouts, with their attempts and spans. Outcomes already handed out stay whole."""
        await self._started(self.store).forget(rollout_ids)

    async def metrics(self) -> dict[str, float]:
        """Counts since `start`, and what the store holds now."""
        pool, held = self._started(self._pool), await self._started(self.store).statistics()
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
            "spans_dropped": float(self._tracer.dropped),
            "store/rollouts": float(held["total_rollouts"]),
            "store/spans": float(held["total_spans"]),
            "store/span_bytes": float(held["total_span_bytes"]),
        }

    async def _retire(self, resources_id: str) -> None:
        """Forget a snapshot of another step than the latest published one that no rollout uses."""
        step = self._snapshots.get(resources_id)
        if step is not None and step != self._step and self._uses[resources_id] == 0:
            del self._snapshots[resources_id], self._uses[resources_id]
            await self._started(self.store).forget_resources(resources_id)

    def _started(self, part: Any) -> Any:
        if part is None:
            raise SlimeAglError("Lightning is not started; call start first")
        return part
