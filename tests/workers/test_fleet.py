"""The fleet's decisions, with workers that are objects of this process."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from slime_agl import garbage
from slime_agl.config import Config, WorkersConfig
from slime_agl.engine.base import EngineInfo
from slime_agl.errors import EngineError, InvariantError, SlimeAglError
from slime_agl.execution import Execution, Job, lost
from slime_agl.workers import fleet as fleets
from slime_agl.workers.fleet import Fleet
from slime_agl.workers.link import Lane, Plan, WorkerDied, unwound
from slime_agl.workers.worker import Hello

JOB = Job(task="a task", lane="train", session_key="key", sampling={}, response_limit=None)


class Worker:
    """A link, and what answers it. script: raises, waits or counts, by method name."""

    node = "here"

    def __init__(self, name: str, script: Script) -> None:
        self.name, self._script = name, script
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.killed = asyncio.Event()

    @property
    def dead(self) -> bool:
        return self.killed.is_set()

    async def call(self, method: str, /, *arguments: Any, lane: Lane = "control") -> Any:
        if self.dead:
            raise WorkerDied(f"worker {self.name} ended: long ago")
        self.calls.append((method, arguments))
        work = asyncio.ensure_future(self._script.answer(self, method, arguments))
        death = asyncio.ensure_future(self.killed.wait())
        try:
            await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
            if self.dead:
                work.cancel()
                raise WorkerDied(f"worker {self.name} ended: SIGKILL")
            return await work
        except asyncio.CancelledError:
            work.cancel()
            await unwound(work)
            raise
        finally:
            death.cancel()

    async def kill(self) -> None:
        self.killed.set()

    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]


class Script:
    """Starts workers, and says what they do. failing: errors by method, each raised once."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.failing: dict[str, list[Exception]] = {}
        self.stuck: set[tuple[str, str]] = set()
        self.release = asyncio.Event()
        self.release.set()
        self.refuse_to_start = 0

    async def start(self, plans: list[Plan]) -> list[Worker]:
        if ("", "start") in self.stuck:
            await asyncio.Event().wait()
        if self.workers and self.refuse_to_start:
            self.refuse_to_start -= 1
            raise WorkerDied("no process can be started")
        started = [Worker(plan.name, self) for plan in plans]
        self.workers += started
        return started

    async def answer(self, worker: Worker, method: str, arguments: tuple[Any, ...]) -> Any:
        if (worker.name, method) in self.stuck:
            await asyncio.Event().wait()
        if self.failing.get(method):
            raise self.failing[method].pop(0)
        if method == "hello":
            return Hello(pid=1, engine_info=EngineInfo())
        if method == "metrics":
            return {"turns": 2.0}
        if method == "in_flight":
            return 3
        if method == "weight_version":
            return "7"
        if method == "execute":
            await self.release.wait()
            made = lost(arguments[0], "")
            return dataclasses.replace(made, rollout_id=f"{worker.name}-{made.rollout_id}", failure="", task=None)
        if method == "perform":
            await self.release.wait()
            return f"made by {arguments[2]}", "a result"
        if method == "record":
            return int(worker.name[1:]), len(arguments[2])
        return None


@pytest.fixture
async def script() -> Script:
    return Script()


Make = Callable[..., Any]


def fleet_of(script: Script, count: int, limit: int, **workers: Any) -> Fleet:
    """A fleet that is not started."""
    return Fleet(
        config=Config(agent="some.agent", workers=WorkersConfig(count=count, **workers)),
        renderer=cast(Any, None),
        transport=cast(Any, script),
        plan=lambda number: Plan(name=f"w{number}", target=""),
        count=count,
        limit=limit,
    )


@pytest.fixture
async def make(script: Script) -> AsyncIterator[Make]:
    """A fleet on this event loop: `start` and `stop` of its own thread are left out."""
    made: list[Fleet] = []

    async def fleet(count: int = 2, limit: int = 100, **workers: Any) -> Fleet:
        new = fleet_of(script, count, limit, **{"slots": 4, **workers})
        new._home.running = True
        await new._start()
        await new.begin_step(0, 1.0, 1.0)
        made.append(new)
        return new

    yield fleet
    for one in made:
        one._home.running = False
        await one._stop()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_executions_spread_over_the_workers(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    script.release.clear()
    running = [asyncio.ensure_future(fleet.execute(JOB)) for _ in range(6)]
    await settled()
    assert [worker.methods().count("execute") for worker in script.workers] == [3, 3]
    script.release.set()
    done = await asyncio.gather(*running)
    assert all(execution.task == "a task" for execution in done)
    assert [await fleet.finished(execution.rollout_id) for execution in done] == done


async def test_no_worker_gets_more_than_its_slots(make: Make, script: Script) -> None:
    fleet = await make(count=2, slots=2)
    script.release.clear()
    running = [asyncio.ensure_future(fleet.execute(JOB)) for _ in range(9)]
    await settled()
    assert [worker.methods().count("execute") for worker in script.workers] == [2, 2]
    script.release.set()
    await asyncio.gather(*running)


async def test_what_a_dead_worker_ran_runs_again_elsewhere(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    script.release.clear()
    running = [asyncio.ensure_future(fleet.execute(JOB)) for _ in range(4)]
    await settled()
    await script.workers[0].kill()
    await settled()
    script.release.set()
    done = await asyncio.gather(*running)
    assert [execution.failure for execution in done] == [""] * 4
    assert not any(execution.rollout_id.startswith("w0") for execution in done)
    counts = await fleet.metrics()
    assert counts["workers/deaths"] == 1 and counts["workers/interrupted_executions"] == 2


async def test_a_new_worker_takes_the_place_and_joins_the_step(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    await fleet.begin_step(5, 0.5, 0.9)
    await script.workers[0].kill()
    assert await fleet.in_flight() == 3  # notices the death
    await settled()
    new = script.workers[2]
    assert new.calls[:2] == [("hello", ()), ("begin_step", (5, 0.5, 0.9))]
    assert await fleet.in_flight() == 6
    assert (await fleet.metrics())["workers/replacements"] == 1


async def test_a_worker_that_starts_while_training_is_parked_is_parked(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    await fleet.park()
    await script.workers[0].kill()
    await fleet.in_flight()
    await settled()
    assert script.workers[2].methods() == ["hello", "begin_step", "park"] or script.workers[2].methods()[-1] == "park"


async def test_what_a_dead_worker_had_at_the_engine_is_aborted_by_another(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    await script.workers[0].kill()
    await fleet.in_flight()
    await settled()
    assert ("abort", ("w0.",)) in script.workers[1].calls
    assert "abort" not in script.workers[2].methods()


async def test_what_the_only_worker_had_at_the_engine_is_aborted_by_its_successor(make: Make, script: Script) -> None:
    fleet = await make(count=1)
    await script.workers[0].kill()
    await fleet.in_flight()
    await settled()
    assert script.workers[1].calls[-1] == ("abort", ("w0.",))


async def test_newcomers_are_equipped_like_the_others(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    for given in ({"a": 1}, {"a": 1}, {"a": 2}):
        await fleet.equip(given)
    assert [call for call in script.workers[1].calls if call[0] == "equip"] == [
        ("equip", ({"a": 1},)),
        ("equip", ({"a": 2},)),
    ]
    await script.workers[0].kill()
    await fleet.in_flight()
    await settled()
    assert ("equip", ({"a": 2},)) in script.workers[2].calls


async def test_what_a_worker_keeps_is_asked_for_by_ticket_until_nobody_holds_it(make: Make, script: Script) -> None:
    fleet = await make(count=1)
    kept = await fleet.perform(JOB, "an order")
    assert script.workers[0].calls[-1] == ("perform", (JOB, "an order", kept.ticket))
    await fleet.finished(f"made by {kept.ticket}")
    assert script.workers[0].calls[-1] == ("finished", (kept.ticket,))
    await fleet.begin_step(1, 1.0, 1.0)
    assert "let_go" not in script.workers[0].methods()
    ticket = kept.ticket
    del kept
    gc.collect()
    assert await fleet.finished(f"made by {ticket}") is None
    await fleet.begin_step(2, 1.0, 1.0)
    assert script.workers[0].calls[-1] == ("let_go", ([ticket],))


async def test_what_is_cancelled_in_a_worker_is_let_go_there_too(make: Make, script: Script) -> None:
    fleet = await make(count=1)
    script.release.clear()
    running = asyncio.ensure_future(fleet.perform(JOB, "an order"))
    await settled()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await fleet.begin_step(1, 1.0, 1.0)
    assert script.workers[0].calls[-1] == ("let_go", ([0],))


async def test_records_are_written_by_whoever_keeps_the_executions(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    first, second = [await fleet.perform(JOB, "an order") for _ in range(2)]
    numbers = await fleet.record("path", {"a": "header"}, [(first, "verdict 0"), (second, "verdict 1")])
    at = {kept.ticket: kept.holder.link for kept in (first, second)}
    for kept, verdict in ((first, "verdict 0"), (second, "verdict 1")):
        (rows,) = [arguments[2] for method, arguments in at[kept.ticket].calls if method == "record"]
        assert (kept.ticket, verdict) in rows
    assert len(numbers) == len({id(link) for link in at.values()})
    await first.holder.link.kill()
    numbers = await fleet.record("path", {}, [(first, "verdict")])
    assert numbers == []
    assert (await fleet.metrics())["workers/unrecorded_executions"] == 1


async def test_an_execution_that_loses_every_worker_is_an_engine_error(make: Make, script: Script) -> None:
    fleet = await make(count=1, retries=1)
    script.failing["execute"] = [WorkerDied("worker w0 ended"), WorkerDied("worker w1 ended")]
    execution: Execution = await fleet.execute(JOB)
    assert execution.failure == "engine_error" and execution.segments == ()
    assert "worker w1 ended" in execution.error and "agl.workers.retries" in execution.error


async def test_errors_of_a_method_are_no_deaths(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    script.failing["execute"] = [InvariantError("broken")]
    with pytest.raises(InvariantError):
        await fleet.execute(JOB)
    script.failing["begin_step"] = [EngineError("no")]
    with pytest.raises(EngineError):
        await fleet.begin_step(1, 1.0, 1.0)
    assert len(script.workers) == 2


async def test_a_cancelled_execution_gives_its_slot_back(make: Make, script: Script) -> None:
    fleet = await make(count=1, slots=1)
    script.release.clear()
    first, second = (asyncio.ensure_future(fleet.execute(JOB)) for _ in range(2))
    await settled()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    script.release.set()
    assert (await second).failure == ""


async def test_parked_training_starts_nothing_while_an_evaluation_goes_on(make: Make, script: Script) -> None:
    fleet = await make(count=1)
    await fleet.park()
    training = asyncio.ensure_future(fleet.execute(JOB))
    assert (await fleet.execute(dataclasses.replace(JOB, lane="val"))).failure == ""
    await settled()
    assert not training.done()
    await fleet.resume()
    await training
    assert script.workers[0].methods()[-2:] == ["resume", "execute"]


async def test_a_worker_that_misses_a_barrier_is_killed(
    make: Make, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = await make(count=2)
    monkeypatch.setattr(fleets, "BARRIER_SECONDS", 0.01)
    script.stuck.add(("w1", "quiet"))
    await fleet.quiet()
    assert script.workers[1].dead and not script.workers[0].dead


async def test_a_worker_that_falls_silent_is_killed(
    make: Make, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "BEAT_SECONDS", 0.0)
    monkeypatch.setattr(fleets, "SILENT_SECONDS", 0.01)
    await make(count=2)
    script.stuck.add(("w1", "ping"))
    await script.workers[1].killed.wait()


async def test_counts_of_the_dead_stay(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    assert (await fleet.metrics())["turns"] == 4
    await script.workers[0].kill()
    await fleet.in_flight()
    await settled()
    assert (await fleet.metrics())["turns"] == 6


async def test_the_watcher_is_told_when_an_execution_begins(make: Make, script: Script) -> None:
    steps: list[int] = []

    class Watcher:
        def begin(self, step: int) -> None:
            steps.append(step)

    fleet = await make(count=1)
    await fleet.begin_step(4, 1.0, 1.0)
    await fleet.execute(dataclasses.replace(JOB, watcher=Watcher()))
    assert steps == [4]
    assert script.workers[0].calls[-1][1][0].watcher is None


async def test_workers_that_are_not_ready_in_time_name_the_key(make: Make, script: Script) -> None:
    script.stuck.add(("w1", "hello"))
    with pytest.raises(SlimeAglError, match="2 workers were not all ready within 0.01 s .*start_seconds"):
        await make(count=2, start_seconds=0.01)
    assert all(worker.dead for worker in script.workers)


async def test_a_worker_that_cannot_start_says_why(make: Make, script: Script) -> None:
    script.failing["hello"] = [EngineError("no engine answers")]
    with pytest.raises(EngineError, match="no engine answers"):
        await make(count=2)
    assert all(worker.dead for worker in script.workers)


async def test_a_fleet_that_stops_ends_a_worker_that_is_still_starting(make: Make, script: Script) -> None:
    fleet = await make(count=2)
    script.stuck.add(("w2", "hello"))
    await script.workers[0].kill()
    await fleet.in_flight()
    await settled()
    fleet._home.running = False
    await fleet._stop()
    assert [worker.dead for worker in script.workers] == [True, True, True]


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "FIRST_PAUSE_SECONDS", 0.0)


async def test_when_no_worker_can_be_replaced_whoever_waits_is_told_and_a_later_worker_serves_the_next(
    make: Make, script: Script, no_pauses: None
) -> None:
    fleet = await make(count=1)
    script.refuse_to_start = fleets.TRIES_TO_REPLACE
    await script.workers[0].kill()
    with pytest.raises(SlimeAglError, match="no worker is left"):
        await fleet.execute(JOB)
    assert Counter(worker.dead for worker in script.workers) == {True: 1}
    assert (await fleet.execute(JOB)).failure == ""


async def test_a_fleet_with_workers_keeps_trying_to_replace_one(make: Make, script: Script, no_pauses: None) -> None:
    fleet = await make(count=2)
    script.refuse_to_start = tries = 3 * fleets.TRIES_TO_REPLACE
    await script.workers[0].kill()
    assert await fleet.in_flight() == 3
    for _ in range(tries):
        assert (await fleet.execute(JOB)).failure == ""
        await settled()
    assert [worker.dead for worker in script.workers] == [True, False, False]
    assert (await fleet.metrics())["workers/replacements"] == 1


async def test_a_cluster_that_does_not_answer_is_waited_for_no_longer_than_workers(make: Make, script: Script) -> None:
    script.stuck.add(("", "start"))
    with pytest.raises(SlimeAglError, match=r"were not all ready within 0.01 s \(agl.workers.start_seconds\)"):
        await make(count=2, start_seconds=0.01)


def test_the_garbage_collector_spares_what_starting_loaded_until_the_fleet_stops(script: Script) -> None:
    fleet = fleet_of(script, 1, 1)
    before = gc.get_threshold()
    fleet.start()
    try:
        assert gc.get_threshold()[0] == garbage.NEW_OBJECTS and gc.get_freeze_count()
    finally:
        fleet.stop()
    assert gc.get_threshold() == before and not gc.get_freeze_count()
