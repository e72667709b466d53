"""Several workers behind the interface of one runtime."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import pickle
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config
from slime_agl.engine.base import EngineInfo, Pressure
from slime_agl.errors import SlimeAglError
from slime_agl.execution import Execution, Job, lost
from slime_agl.loops import LoopThread, Work
from slime_agl.pace import Law, Pace
from slime_agl.runtime import K, Kept
from slime_agl.runtime_loop import RuntimeLoop
from slime_agl.workers.arguments import portable_arguments
from slime_agl.workers.crew import Crew, Member
from slime_agl.workers.link import Link, Plan, Transport, WorkerDied, ended
from slime_agl.workers.worker import Hello, origin_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
STEPS_KEPT = 2
# Beyond what a worker needs for a barrier: ending agents, and waiting until the engine is idle.
BARRIER_SECONDS = 120.0
BEAT_SECONDS, SILENT_SECONDS = 10.0, 60.0
STOP_SECONDS = 30.0
# A fleet without workers that fails so often in a row to start one ends the run; one with workers keeps trying.
TRIES_TO_REPLACE = 3
# Between tries, doubled each time: a node may come back, and CPUs may be freed.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 60.0


class Fleet:
    """A runtime (see `Runtime`) whose executions run in workers.

    count: number of workers. limit: maximum concurrent executions over all of them. law: by which it
    changes, None if it is fixed. plan: describes the worker with a
    given number; transport starts it. renderer: of this process. died: called with the node of each worker that ends.
    most_bytes: bound on the data of finished groups that no batch has taken.
    """

    def __init__(
        self,
        *,
        config: Config,
        renderer: Renderer,
        transport: Transport,
        plan: Callable[[int], Plan],
        count: int,
        limit: int,
        law: Law | None = None,
        most_bytes: int | None = None,
        died: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.config, self.renderer = config, renderer
        self.most_bytes = most_bytes
        self._transport, self._plan, self._count, self._died = transport, plan, count, died
        self._home = RuntimeLoop()
        self._crew = Crew(limit if law is None else law.limit)
        self._pace = Pace(law, read=self.pressure, demand=self._crew.demand, apply=self._crew.resize)
        self._numbers, self._tickets = itertools.count(), itertools.count()
        self._hello: Hello | None = None
        self._step: tuple[int, float, float] | None = None
        self._kept: list[list[Execution]] = []
        self._finished: WeakValueDictionary[str, Execution | Kept] = WeakValueDictionary()
        self._equipment: Any = None
        self._equipment_bytes = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self._parked = False
        self._gone: Counter[str] = Counter()  # counts of workers that have died
        self._counts: Counter[str] = Counter()  # the fleet's own

    def start(self) -> None:
        self._home.start(LoopThread("agl-fleet"))
        try:
            self._home.run(self._start())
        except BaseException:
            self.stop()
            raise
        self._home.settle()

    def stop(self) -> None:
        if self._home.running:
            self._home.close(self._stop)
            self._home.end()

    def run(self, coroutine: Work[T]) -> T:
        return self._home.run(coroutine)

    def submit(self, coroutine: Work[T]) -> Future[T]:
        return self._home.submit(coroutine)

    def keep(self, kind: type[K], make: Callable[[], K]) -> K:
        return self._home.keep(kind, make)

    @property
    def engine_info(self) -> EngineInfo:
        if self._hello is None:
            raise SlimeAglError("the fleet is not started")
        return self._hello.engine_info

    async def begin_step(self, step: int, temperature: float, top_p: float) -> None:
        self._step = (step, temperature, top_p)
        self._kept.append([])
        while len(self._kept) > STEPS_KEPT:
            self._kept.pop(0)
        await self._everyone("begin_step", *self._step)
        await asyncio.gather(*(self._let_go(member) for member in self._crew))
        self._pace.go_on()

    async def equip(self, arguments: Mapping[str, Any]) -> None:
        portable = portable_arguments(arguments)
        packed = pickle.dumps(portable)
        if packed != self._equipment_bytes:
            self._equipment, self._equipment_bytes = portable, packed
            await self._everyone("equip", portable)

    async def execute(self, job: Job) -> Execution:
        _, execution = await self._somewhere(job, "execute")
        execution = dataclasses.replace(execution, task=job.task)  # it does not travel back
        self._finished[execution.rollout_id] = execution
        self._kept[-1].append(execution)
        return execution

    async def perform(self, job: Job, order: Any) -> Kept | Execution:
        """See Runtime. Returns an Execution if no worker finished it."""
        ticket = next(self._tickets)
        member, done = await self._somewhere(job, "perform", order, ticket, ticket=ticket)
        if member is None:
            return done
        rollout_id, result = done
        kept = Kept(member, ticket, result)
        # A finalizer may run anywhere, even in the middle of this loop's work: it only leaves a note.
        weakref.finalize(kept, member.abandoned.append, ticket).atexit = False
        self._finished[rollout_id] = kept
        return kept

    async def _somewhere(
        self, job: Job, method: str, *arguments: Any, ticket: int | None = None
    ) -> tuple[Member | None, Any]:
        """Call a worker's method on a job, another worker's if that one dies; an Execution if the last one died too."""
        error = ""
        plain = dataclasses.replace(job, watcher=None)
        for _ in range(self.config.workers.retries + 1):
            member = await self._crew.reserve(job.lane)
            if job.watcher is not None and self._step is not None:
                job.watcher.begin(self._step[0])
            try:
                return member, await member.link.call(method, plain, *arguments, lane="run")
            except WorkerDied as death:
                self._bury(member, death)
                self._counts["interrupted_executions"] += 1
                error = str(death)
            except asyncio.CancelledError:
                if ticket is not None:
                    member.abandoned.append(ticket)  # it may have finished in the same moment
                raise
            finally:
                self._crew.release(member)
        self._counts["lost_executions"] += 1
        tries = self.config.workers.retries + 1
        return None, lost(job, f"{error}; it was the last of {tries} tries (agl.workers.retries)")

    async def finished(self, rollout_id: str) -> Execution | None:
        found = self._finished.get(rollout_id)
        if not isinstance(found, Kept):
            return found
        with contextlib.suppress(WorkerDied):
            return await found.holder.link.call("finished", found.ticket, lane="bulk")
        return None

    async def record(self, path: str, header: Any, found: Sequence[tuple[Kept, Any]]) -> list[int]:
        of_members: dict[Member, list[tuple[int, Any]]] = {}
        for kept, verdict in found:
            of_members.setdefault(kept.holder, []).append((kept.ticket, verdict))
        numbers = await asyncio.gather(
            *(self._recorded(member, path, header, rows) for member, rows in of_members.items())
        )
        return [number for number in numbers if number is not None]

    async def _recorded(self, member: Member, path: str, header: Any, rows: list[tuple[int, Any]]) -> int | None:
        """Number of the worker, None if it is gone with what it kept."""
        number, written = None, 0
        try:
            number, written = await member.link.call("record", path, header, rows, lane="bulk")
        except WorkerDied as death:
            logger.warning("%s; %d executions of it are missing from the record %s", death, len(rows), path)
        self._counts["unrecorded_executions"] += len(rows) - written
        return number

    async def _let_go(self, member: Member) -> None:
        """Tell a worker which executions nobody here can ask for any more."""
        gone = [member.abandoned.popleft() for _ in range(len(member.abandoned))]
        if gone:
            with contextlib.suppress(WorkerDied):
                await member.link.call("let_go", gone)

    async def park(self) -> None:
        self._parked = True
        self._pace.stay()
        self._crew.park("train")
        await self._everyone("park")

    async def resume(self) -> None:
        self._parked = False
        await self._everyone("resume")
        self._crew.resume("train")
        self._pace.go_on()

    async def abort(self, origin: str) -> None:
        await self._abort(origin)

    async def quiet(self) -> None:
        await self._everyone("quiet")

    async def weight_version(self) -> str:
        """Version of the weights that the engine samples with now; the workers share the engine."""
        for member in self._crew:
            try:
                return await self._within(member, BARRIER_SECONDS, "weight_version")
            except WorkerDied:
                continue
        return ""

    async def in_flight(self) -> int:
        return sum(await self._everyone("in_flight"))

    async def metrics(self) -> dict[str, float]:
        """Counts since the start: those of all workers, dead ones included, and `workers/...`, the fleet's own."""
        await asyncio.gather(*(self._counted(member) for member in self._crew))
        total: Counter[str] = Counter(self._gone)
        for member in self._crew:
            total.update(member.counts)
        own = {f"workers/{name}": float(count) for name, count in self._counts.items()}
        return {**total, **own, **self._pace.metrics(), "workers/alive": float(len(self._crew))}

    async def pressure(self) -> Pressure:
        """See Runtime; the workers share the engine, so one of them tells its load."""
        found: list[Pressure] = await self._everyone("pressure")
        return Pressure.over(found)

    async def _start(self) -> None:
        seconds = self.config.workers.start_seconds
        links: Sequence[Link] = ()
        try:
            async with asyncio.timeout(seconds):
                links = await self._transport.start([self._plan(next(self._numbers)) for _ in range(self._count)])
                hellos = await asyncio.gather(*(link.call("hello") for link in links))
        except BaseException as error:
            await asyncio.gather(*(link.kill() for link in links), return_exceptions=True)
            if isinstance(error, TimeoutError):
                raise SlimeAglError(
                    f"{self._count} workers were not all ready within {seconds:g} s (agl.workers.start_seconds); "
                    "raise it, or see what they log"
                ) from None
            raise
        self._hello = hellos[0]
        for link in links:
            self._join(link)
        logger.info("%d workers are ready: %s", len(links), ", ".join(f"{link.name} on {link.node}" for link in links))

    def _join(self, link: Link) -> None:
        member = Member(link, self.config.workers.slots)
        self._crew.add(member)
        self._spawn(self._listen(member))

    def _spawn(self, coroutine: Work[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, member: Member) -> None:
        """Bury a worker that no longer answers."""
        while member in self._crew:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                await self._within(member, SILENT_SECONDS, "ping")
            except WorkerDied:
                return

    async def _everyone(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker, and return the results of those that live to give one."""
        calls = [self._within(member, BARRIER_SECONDS, method, *arguments) for member in self._crew]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, WorkerDied):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _counted(self, member: Member) -> None:
        with contextlib.suppress(WorkerDied):
            member.counts = await self._within(member, BARRIER_SECONDS, "metrics")

    async def _within(self, member: Member, seconds: float, method: str, *arguments: Any) -> Any:
        """Call a method of a worker, which is killed when it takes longer.

        Raises:
            WorkerDied: it is gone.
        """
        call = asyncio.ensure_future(member.link.call(method, *arguments))
        try:
            done, _ = await asyncio.wait({call}, timeout=seconds)
            if not done:
                logger.error("worker %s did not answer %s within %g s; it is killed", member.link.name, method, seconds)
                await member.link.kill()
            return await call
        except WorkerDied as death:
            self._bury(member, death)
            raise
        except asyncio.CancelledError:
            call.cancel()
            raise

    def _bury(self, member: Member, death: WorkerDied) -> None:
        """Count a worker's death, once, and start another in its place."""
        if not self._crew.remove(member):
            return
        logger.warning("%s; its executions run again elsewhere", death)
        self._counts["deaths"] += 1
        self._gone.update(member.counts)
        self._died(member.link.node)
        if self._home.running:
            self._spawn(self._replace(member))

    async def _abort(self, origin: str) -> bool:
        """Have a worker abort the engine requests of another; False if there is no worker."""
        for member in self._crew:
            with contextlib.suppress(WorkerDied):
                await self._within(member, BARRIER_SECONDS, "abort", origin)
                return True
        return False

    async def _replace(self, member: Member) -> None:
        await member.link.kill()
        # A node that is gone does not even close its connections to the engine.
        aborted = await self._abort(origin_of(member.link.name))
        pause = FIRST_PAUSE_SECONDS
        for failed in itertools.count(1):
            try:
                await self._start_another()
            except Exception as error:  # of the machine, of Ray, of the worker: each may be gone at the next try
                why = str(error) or type(error).__name__
                logger.error("try %d to start a worker in place of %s failed: %s", failed, member.link.name, why)
                if failed >= TRIES_TO_REPLACE and not len(self._crew):
                    self._crew.refuse(SlimeAglError(f"no worker is left, and none can be started: {why}"))
            else:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
        self._counts["replacements"] += 1
        if not aborted:
            await self._abort(origin_of(member.link.name))

    async def _start_another(self) -> None:
        link: Link | None = None
        try:
            async with asyncio.timeout(self.config.workers.start_seconds):
                (link,) = await self._transport.start([self._plan(next(self._numbers))])
                await link.call("hello")
                await self._catch_up(link)
            self._join(link)  # no step has begun since, as nothing was awaited
        except BaseException:  # also when the fleet stops: nobody else knows of this worker
            if link is not None:
                await link.kill()
            raise

    async def _catch_up(self, link: Link) -> None:
        """Bring a new worker to where the others are, however often they move on meanwhile."""
        step, parked, equipped = None, False, b""
        while (step, parked, equipped) != (self._step, self._parked, self._equipment_bytes):
            if equipped != self._equipment_bytes:
                equipped = self._equipment_bytes
                await link.call("equip", self._equipment)
            elif step != self._step and self._step is not None:
                step = self._step
                await link.call("begin_step", *step)
            elif parked != self._parked:
                parked = self._parked
                await link.call("park" if parked else "resume")

    async def _stop(self) -> None:
        await self._pace.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(ended(member.link, STOP_SECONDS) for member in self._crew))
